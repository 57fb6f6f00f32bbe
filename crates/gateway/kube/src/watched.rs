//! Selection of the objects to list and watch.

/// The objects of one kind in a namespace, optionally filtered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// API group; empty: the core group.
    pub group: &'static str,
    pub version: &'static str,
    /// Plural name of the kind, as in URLs: `pods`.
    pub kind: &'static str,
    pub namespace: String,
    /// A label selector; empty: all objects.
    pub labels: String,
    /// Name of the only object to watch; `None`: all objects.
    pub name: Option<String>,
}

impl Watched {
    pub(crate) fn path(&self) -> Vec<&str> {
        let group = match self.group {
            "" => vec!["api", self.version],
            group => vec!["apis", group, self.version],
        };
        [group, vec!["namespaces", &self.namespace, self.kind]].concat()
    }

    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        if !self.labels.is_empty() {
            query.push(("labelSelector", self.labels.clone()));
        }
        if let Some(name) = &self.name {
            query.push(("fieldSelector", format!("metadata.name={name}")));
        }
        query
    }

    /// Description for the log.
    pub(crate) fn said(&self) -> String {
        let (kind, namespace) = (self.kind, &self.namespace);
        match self.group {
            "" => format!("{kind} in namespace {namespace}"),
            group => format!("{kind}.{group}/{} in namespace {namespace}", self.version),
        }
    }
}
