"""Have the local cloud's API keep as much as it takes of one kind, as a job with all rights: `fill_api.py KIND`.

It prints "filled KIND: " and the code with which it was refused, if it was.
"""

import sys
import time
import uuid

import boto3
from botocore.config import Config

KIND, NAME, KIB = sys.argv[1], uuid.uuid4().hex, 1024
ONE_TRY = Config(retries={"total_max_attempts": 1}, disable_request_compression=True)


def client(service):
    return boto3.client(service, config=ONE_TRY)


def logs():
    api, now = client("logs"), int(time.time() * 1000)
    api.create_log_group(logGroupName=NAME)
    api.create_log_stream(logGroupName=NAME, logStreamName=NAME)
    batch = [{"timestamp": now, "message": "x" * 100 * KIB}] * 9
    return 100, lambda _: api.put_log_events(logGroupName=NAME, logStreamName=NAME, logEvents=batch)


def messages():
    api = client("sqs")
    url = api.create_queue(QueueName=NAME)["QueueUrl"]
    return 500, lambda _: api.send_message(QueueUrl=url, MessageBody="x" * 200 * KIB, DelaySeconds=900)


def metrics():
    api = client("cloudwatch")

    def put(number):
        data = [{"MetricName": f"{number}-{at}", "Value": at} for at in range(500)]
        api.put_metric_data(Namespace=NAME, MetricData=data)

    return 100, put


def items():
    api = client("dynamodb")
    schema = {"KeySchema": [{"AttributeName": "key", "KeyType": "HASH"}], "BillingMode": "PAY_PER_REQUEST"}
    attributes = [{"AttributeName": "key", "AttributeType": "S"}]
    api.create_table(TableName=NAME, AttributeDefinitions=attributes, **schema)
    text = {"S": "x" * 300 * KIB}
    return 300, lambda number: api.put_item(TableName=NAME, Item={"key": {"S": str(number)}, "text": text})


def objects():
    api = client("s3")
    api.create_bucket(Bucket=NAME)
    return 64, lambda number: api.put_object(Bucket=NAME, Key=str(number), Body=b"x" * 8192 * KIB)


def parameters():
    api = client("ssm")
    return 5000, lambda number: api.put_parameter(Name=f"/{NAME}/{number}", Value="x" * 4 * KIB, Type="String")


def sessions():
    api = client("sts")
    return 1500, lambda number: api.assume_role(RoleArn=sys.argv[2], RoleSessionName=f"s{number}")


def signals():
    api = client("cloudformation")
    what = {"StackName": sys.argv[2], "LogicalResourceId": sys.argv[3], "Status": "SUCCESS"}
    return 3000, lambda number: api.signal_resource(UniqueId=f"{NAME}{number}", **what)


def tokens():
    """Only root reaches the metadata service."""
    import urllib.request

    url, headers = "http://169.254.169.254/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
    return 5000, lambda _: urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="PUT")).read()


times, call = globals()[KIND]()
number, refused = 0, ""
try:
    for number in range(times):
        call(number)
except Exception as error:
    refused = getattr(error, "response", {}).get("Error", {}).get("Code", type(error).__name__)
print(f"filled {KIND}: {number} {refused}", flush=True)
