"""Cohere's client, for its rerank endpoint."""

import cohere
from check import BASE_URL, MODEL, QUESTION, feature

client = cohere.ClientV2(api_key="none", base_url=BASE_URL.removesuffix("/v1"))


@feature("rerank")
def _() -> None:
    found = client.rerank(
        model=MODEL,
        query=QUESTION,
        documents=["Paris is the capital of France.", "Bread is made of flour.", "Two and two."],
        top_n=2,
    )
    assert len(found.results) == 2
    assert found.results[0].relevance_score >= found.results[1].relevance_score
