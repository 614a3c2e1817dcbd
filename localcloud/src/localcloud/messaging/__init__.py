"""SQS, SNS, scheduled rules, and the Lambda functions that they invoke."""
