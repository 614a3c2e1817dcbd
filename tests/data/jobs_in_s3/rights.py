"""Call S3 with the credentials of jobs, and print what is refused."""

import sys

sys.path.insert(0, ".")
from phalanx.objects.job_keys import OfJob
from phalanx.objects.s3_client import Bucket, Client, S3Error, endpoint_here

client = Client(Bucket("my-bucket", "us-east-1", endpoint_here("")), OfJob())
client.call("PUT", "runs/result", {}, {}, b"42")
print(client.call("GET", "pets/large", {}).status)
for method, key in (("PUT", "pets/large"), ("DELETE", "pets/large"), ("GET", "secret"), ("GET", "")):
    try:
        client.call(method, key, {})
    except S3Error as error:
        print(method, key, error.status)
