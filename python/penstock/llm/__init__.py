"""Offline batches without a server, with the types of vLLM's Python interface. The caller's thread
drives the engine's scheduler and executor.

llm = LLM("smollm2")
for answer in llm.generate(["Hello", "Bonjour"], SamplingParams(max_tokens=32)):
    print(answer.outputs[0].text)
"""

from penstock.llm.beam import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from penstock.llm.offline import LLM
from penstock.llm.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from penstock.llm.pooling import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from penstock.llm.prompts import TextPrompt, TokensPrompt
from penstock.llm.sampling import SamplingParams
from penstock.llm.structured import GuidedDecodingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "EmbeddingRequestOutput",
    "GuidedDecodingParams",
    "Logprob",
    "PoolingParams",
    "PoolingRequestOutput",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
    "ScoringRequestOutput",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
]
