"""The tracker in other people's loops (Lightning, Hugging Face, Ignite), and its numbers in other people's logs.

Nothing here is imported before it is asked for: each module needs the library it speaks to.
"""

from spherometer.integrations.sinks import CSVSink, MLflowSink, TensorBoardSink, WandbSink

__all__ = ["CSVSink", "MLflowSink", "TensorBoardSink", "WandbSink"]
