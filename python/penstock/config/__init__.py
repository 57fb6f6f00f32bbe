"""Configuration: command line flags, file and environment variables become frozen sections. No
other package reads the environment.

raw     strings as the user wrote them, each with its source (`sources`)
parsed  one value for each row of the flag table (`flags`, `kinds`)
Config  sections that other rooms read (`sections`), after cross-checks (`resolve`)
"""

from penstock.config.documents import read_document
from penstock.config.flags import FLAGS, Flag
from penstock.config.hub import HubSettings, hub_cache, hub_settings
from penstock.config.kubernetes import ClusterAccess, cluster_access, default_kubeconfigs
from penstock.config.kv_events import KvEventsConfig
from penstock.config.log import LOG_FORMATS, LOG_LEVELS, configure_log
from penstock.config.nodes import cluster_key, split_address
from penstock.config.ray import prepare_ray_environment, ray_actor_environment
from penstock.config.resolve import CERTIFICATE_AND_KEY, resolve
from penstock.config.sections import (
    ON_CPUS,
    ON_GPUS,
    CacheConfig,
    ComputeConfig,
    Config,
    EngineConfig,
    LogConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    ServerConfig,
    TierConfig,
    TiersConfig,
    ranks_of_nodes,
)
from penstock.config.sources import (
    Raw,
    backend_api_key,
    cache_directory,
    gateway_api_key,
    gather,
    heartbeat_directory,
    model_named,
    notify_socket,
    openai_api_key,
    replica_environment,
    runtime_directory,
    shared_memory_directory,
)
from penstock.config.vllm_flags import foreign_keys, ignored_value

__all__ = [
    "CERTIFICATE_AND_KEY",
    "FLAGS",
    "LOG_FORMATS",
    "LOG_LEVELS",
    "ON_CPUS",
    "ON_GPUS",
    "CacheConfig",
    "ClusterAccess",
    "ComputeConfig",
    "Config",
    "EngineConfig",
    "Flag",
    "HubSettings",
    "KvEventsConfig",
    "LogConfig",
    "ModelConfig",
    "ParallelConfig",
    "Raw",
    "SchedulerConfig",
    "ServerConfig",
    "TierConfig",
    "TiersConfig",
    "backend_api_key",
    "cache_directory",
    "cluster_access",
    "cluster_key",
    "configure_log",
    "default_kubeconfigs",
    "foreign_keys",
    "gateway_api_key",
    "gather",
    "heartbeat_directory",
    "hub_cache",
    "hub_settings",
    "ignored_value",
    "model_named",
    "notify_socket",
    "openai_api_key",
    "prepare_ray_environment",
    "ranks_of_nodes",
    "ray_actor_environment",
    "read_document",
    "replica_environment",
    "resolve",
    "runtime_directory",
    "shared_memory_directory",
    "split_address",
]
