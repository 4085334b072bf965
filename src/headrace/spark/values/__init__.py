"""What values mean: JSON, Avro, Protobuf, text, binary and variant as typed columns, and back."""

from headrace.spark.values.frames import FORMATS, Decoded, dead_letters, decode, decoder_of, encode, infer_schema

__all__ = ["FORMATS", "Decoded", "dead_letters", "decode", "decoder_of", "encode", "infer_schema"]
