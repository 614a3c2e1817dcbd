"""Crowd the local cloud's API, as a job could: `hold_connections.py HOST:PORT headers|bodies|documents`.

It prints "holding" once it has what it can get, and then how many connections the server has given up.
"""

import select
import socket
import sys
import threading
import time

HOST, _, PORT = sys.argv[1].partition(":")
CONNECTIONS, DOCUMENTS = 300, 4
BODY_BYTES = 16 << 20
PIECE = b"x" * (1 << 16)
EVERY_S, GIVEN_UP_WITHIN_S = 0.5, 150
HEAD = "PUT /bucket/key HTTP/1.1\r\nHost: x\r\nAuthorization: {}\r\n"
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIANOBODY/20260101/us-east-1/{}/aws4_request, SignedHeaders=a, Signature=b"
BODY = (HEAD.format(SIGNED.format("s3")) + f"Content-Length: {BODY_BYTES}\r\n\r\n").encode()
# 5 million lists, of which each takes 64 bytes once it is parsed.
LISTS = b'{"a": [' + b"[]," * ((BODY_BYTES - 12) // 3) + b"[]]}"
DOCUMENT = (
    "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-amz-json-1.0\r\nX-Amz-Target: DynamoDB_20120810.PutItem"
    f"\r\nAuthorization: {SIGNED.format('dynamodb')}\r\nContent-Length: {len(LISTS)}\r\n\r\n"
).encode()


def begin_headers(connection):
    send(connection, (HEAD + "X-A: ").encode())


def begin_body(connection):
    """Send a body but for its end, as far as the server takes it."""
    send(connection, BODY)
    for _ in range(BODY_BYTES // len(PIECE) - 1):
        send(connection, PIECE)


def send_document(connection):
    """Send a whole document that is large in memory, and wait for the answer."""
    connection.settimeout(60)
    send(connection, DOCUMENT + LISTS)
    select.select([connection], [], [], 60)


def send(connection, content):
    try:
        connection.sendall(content)
    except OSError:
        pass  # the server has refused the connection, or reads no more


def is_given_up(connection):
    """Whether the server has ended a connection. One more byte of a header or a body keeps the others busy."""
    try:
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(4096):
                return True
        connection.send(b"x", socket.MSG_DONTWAIT)
    except BlockingIOError:
        pass  # its buffer is full
    except OSError:
        return True
    return False


begin, count = {
    "headers": (begin_headers, CONNECTIONS),
    "bodies": (begin_body, CONNECTIONS),
    "documents": (send_document, DOCUMENTS),
}[sys.argv[2]]
left = [socket.create_connection((HOST, int(PORT)), timeout=5) for _ in range(count)]
threads = [threading.Thread(target=begin, args=(connection,)) for connection in left]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("holding", flush=True)
end = time.monotonic() + GIVEN_UP_WITHIN_S
while left and time.monotonic() < end:
    time.sleep(EVERY_S)
    left = [connection for connection in left if not is_given_up(connection)]
print(f"the server has given up all but {len(left)}", flush=True)
