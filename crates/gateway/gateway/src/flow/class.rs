//! The class of a request, which orders it in the queue: its priority and its tenant.

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use axum::http::{HeaderMap, HeaderName};
use penstock_http::Caller;

use crate::config::Objective;

/// Headers with the objective (a named priority) and the tenant. The second name of each pair is
/// the current name in llm-d.
const OBJECTIVE: [HeaderName; 2] = [
    HeaderName::from_static("x-gateway-inference-objective"),
    HeaderName::from_static("x-llm-d-inference-objective"),
];
const FAIRNESS_ID: [HeaderName; 2] = [
    HeaderName::from_static("x-gateway-inference-fairness-id"),
    HeaderName::from_static("x-llm-d-inference-fairness-id"),
];
/// Maximum length of a tenant's name in characters; the rest is cut off.
const MOST_NAME: usize = 256;

/// The class of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Class {
    /// A priority below 0 is sheddable: the request is refused when the pool is saturated.
    pub(crate) priority: i32,
    pub(crate) tenant: Arc<str>,
}

/// The configured objectives.
#[derive(Debug)]
pub(crate) struct Classes(ArcSwap<Objectives>);

/// By name: the pool to which the objective is limited, if any, and its priority.
type Objectives = HashMap<String, Vec<(Option<String>, i32)>>;

impl Classes {
    pub(crate) fn new(objectives: &[Objective]) -> Self {
        Self(ArcSwap::from_pointee(by_name(objectives)))
    }

    /// Replaces the objectives. Requests that already have a class keep it.
    pub(crate) fn replace(&self, objectives: &[Objective]) {
        self.0.store(Arc::new(by_name(objectives)));
    }

    /// The class of a request to `pool`. The request's objective sets the priority, if it exists
    /// and applies to `pool`. Otherwise the priority is `usual`, the model's default. The tenant is
    /// the fairness id, or else the name of the API key.
    pub(crate) fn class(
        &self,
        headers: &HeaderMap,
        caller: Option<&Caller>,
        pool: &str,
        usual: i32,
    ) -> Class {
        let objectives = self.0.load();
        let named = text(headers, &OBJECTIVE).and_then(|name| objectives.get(name));
        let here = |one: &&(Option<String>, i32)| one.0.as_deref().is_none_or(|only| only == pool);
        let priority = named.and_then(|all| all.iter().find(here));
        let tenant = text(headers, &FAIRNESS_ID).filter(|name| !name.is_empty());
        let tenant = tenant.or(caller.map(|caller| caller.name.as_str()));
        let tenant = tenant.unwrap_or_default();
        let most = tenant.char_indices().nth(MOST_NAME);
        Class {
            priority: priority.map_or(usual, |(_, priority)| *priority),
            tenant: tenant[..most.map_or(tenant.len(), |(at, _)| at)].into(),
        }
    }
}

fn by_name(objectives: &[Objective]) -> Objectives {
    let mut found = Objectives::new();
    for one in objectives {
        let named = found.entry(one.name.clone()).or_default();
        named.push((one.pool.clone(), one.priority));
    }
    found
}

fn text<'a>(headers: &'a HeaderMap, names: &[HeaderName]) -> Option<&'a str> {
    let value = names.iter().find_map(|name| headers.get(name))?;
    value.to_str().ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn class(headers: &[(&'static str, &'static str)], usual: i32) -> Class {
        let objective = |name: &str, pool: Option<&str>, priority| Objective {
            name: name.to_owned(),
            pool: pool.map(ToOwned::to_owned),
            priority,
        };
        let classes = Classes::new(&[
            objective("chat", Some("other"), 1),
            objective("chat", Some("p"), 7),
            objective("batch", None, -2),
        ]);
        let pair = |(name, value): &(&'static str, &'static str)| {
            let value = HeaderValue::from_static(value);
            (HeaderName::from_static(name), value)
        };
        let headers: HeaderMap = headers.iter().map(pair).collect();
        classes.class(&headers, None, "p", usual)
    }

    #[test]
    fn an_objective_of_the_pool_has_the_priority() {
        let named = |name| class(&[("x-gateway-inference-objective", name)], 3).priority;
        assert_eq!((named("chat"), named("batch"), named("none")), (7, -2, 3));
        assert_eq!(class(&[], -1).priority, -1);
        assert_eq!(
            class(&[("x-llm-d-inference-objective", "batch")], 0).priority,
            -2
        );
    }

    #[test]
    fn a_fairness_id_names_the_tenant() {
        let tenant = |name| class(&[("x-gateway-inference-fairness-id", name)], 0).tenant;
        assert_eq!(&*tenant("team a"), "team a");
        assert_eq!(&*tenant(""), "");
    }
}
