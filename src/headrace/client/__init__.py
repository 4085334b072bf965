"""A pleasant, typed layer over confluent-kafka for people who write Python.

    from headrace.client import Consumer, Producer

    with Producer("127.0.0.1:9092") as producer:
        producer.send("orders", {"id": 1, "total": 9.5}, key="customer-7")

    with Consumer("orders", group="billing") as consumer:
        for message in consumer:
            print(message.key_text, message.json())

It knows nothing of the broker: it speaks to any Kafka.
"""

from headrace.client.admin import Admin
from headrace.client.connection import Connection
from headrace.client.consumer import Consumer
from headrace.client.errors import ClientError, UnreachableError
from headrace.client.groups import Groups
from headrace.client.message import Message
from headrace.client.producer import Delivery, Producer, Receipt
from headrace.client.reader import Range, Reader

__all__ = [
    "Admin",
    "ClientError",
    "Connection",
    "Consumer",
    "Delivery",
    "Groups",
    "Message",
    "Producer",
    "Range",
    "Reader",
    "Receipt",
    "UnreachableError",
]
