//! The known objects of one kind. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::api_error::ApiError;
use crate::event::{Event, Head, ObjectMeta, malformed};

/// Objects by name.
pub type Objects<T> = BTreeMap<String, T>;

/// Objects, and the resource version of the list or event that they are up to date with.
#[derive(Debug)]
pub(crate) struct Snapshot<T> {
    pub(crate) objects: Arc<Objects<T>>,
    /// `None`: a list is needed before a watch.
    pub(crate) version: Option<String>,
}

impl<T: DeserializeOwned + Clone + PartialEq> Snapshot<T> {
    pub(crate) fn nothing() -> Self {
        Self {
            objects: Arc::default(),
            version: None,
        }
    }

    /// Replaces the objects by those of a list. Returns whether any object changed.
    pub(crate) fn replace(&mut self, objects: Objects<T>, version: String) -> bool {
        self.version = Some(version);
        let changed = *self.objects != objects;
        if changed {
            self.objects = Arc::new(objects);
        }
        changed
    }

    /// Applies one line of a watch. Returns whether any object changed. The resource versions of a
    /// kind grow, so that an event whose version is not newer is late or a duplicate; it is
    /// ignored.
    ///
    /// # Errors
    /// [`ApiError`]: the line is malformed, or an error event ended the watch.
    pub(crate) fn apply(&mut self, line: &[u8]) -> Result<bool, ApiError> {
        let event = Event::parse(line)?;
        let (Event::Is(raw) | Event::Deleted(raw) | Event::Bookmark(raw)) = &event;
        let meta = head(raw)?;
        if self.has_seen(&meta.resource_version) {
            return Ok(false);
        }
        let changed = match event {
            Event::Bookmark(_) => false,
            Event::Deleted(_) => self.remove(&meta.name),
            Event::Is(raw) => match serde_json::from_str::<T>(raw.get()) {
                Ok(object) => self.put(meta.name, object),
                // An object that cannot be parsed counts as deleted.
                Err(_) => self.remove(&meta.name),
            },
        };
        self.version = Some(meta.resource_version);
        Ok(changed)
    }

    fn has_seen(&self, version: &str) -> bool {
        let Some(last) = self.version.as_deref() else {
            return false;
        };
        match (version.parse::<u64>(), last.parse::<u64>()) {
            (Ok(version), Ok(last)) => version <= last,
            _ => version == last,
        }
    }

    fn put(&mut self, name: String, object: T) -> bool {
        if self.objects.get(&name) == Some(&object) {
            return false;
        }
        Arc::make_mut(&mut self.objects).insert(name, object);
        true
    }

    fn remove(&mut self, name: &str) -> bool {
        self.objects.contains_key(name) && Arc::make_mut(&mut self.objects).remove(name).is_some()
    }
}

/// # Errors
/// [`ApiError::Malformed`]: the JSON is not an object, or has no resource version.
pub(crate) fn head(raw: &RawValue) -> Result<ObjectMeta, ApiError> {
    let head: Head = serde_json::from_str(raw.get()).map_err(malformed)?;
    match head.metadata.resource_version.is_empty() {
        true => Err(ApiError::Malformed(
            "an object without a version".to_owned(),
        )),
        false => Ok(head.metadata),
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Deserialize)]
    struct Thing {
        size: u32,
    }

    fn event(kind: &str, name: &str, version: &str, size: &str) -> Vec<u8> {
        let meta = format!(r#"{{"name": "{name}", "resourceVersion": "{version}"}}"#);
        format!(r#"{{"type": "{kind}", "object": {{"metadata": {meta}, "size": {size}}}}}"#).into()
    }

    fn sizes(known: &Snapshot<Thing>) -> Vec<(&str, u32)> {
        let objects = known.objects.iter();
        objects
            .map(|(name, thing)| (name.as_str(), thing.size))
            .collect()
    }

    fn listed() -> Snapshot<Thing> {
        let mut known = Snapshot::nothing();
        assert!(known.replace(
            [("a".to_owned(), Thing { size: 1 })].into(),
            "10".to_owned()
        ));
        known
    }

    #[test]
    fn events_are_applied_in_their_order() {
        let mut known = listed();
        assert!(known.apply(&event("ADDED", "b", "11", "2")).unwrap());
        assert!(known.apply(&event("MODIFIED", "a", "12", "3")).unwrap());
        assert!(!known.apply(&event("MODIFIED", "a", "13", "3")).unwrap());
        assert!(known.apply(&event("DELETED", "b", "14", "2")).unwrap());
        assert!(!known.apply(&event("DELETED", "b", "15", "2")).unwrap());
        assert!(!known.apply(&event("BOOKMARK", "", "20", "0")).unwrap());
        assert_eq!(sizes(&known), [("a", 3)]);
        assert_eq!(known.version.as_deref(), Some("20"));
    }

    #[test]
    fn what_comes_twice_or_late_says_nothing_new() {
        let mut known = listed();
        assert!(known.apply(&event("DELETED", "a", "12", "1")).unwrap());
        for late in ["10", "11", "12"] {
            assert!(!known.apply(&event("ADDED", "a", late, "1")).unwrap());
        }
        assert!(sizes(&known).is_empty());
        // Versions are compared as numbers: 9 is before 12.
        assert!(!known.apply(&event("ADDED", "a", "9", "1")).unwrap());
        assert!(known.apply(&event("ADDED", "a", "100", "1")).unwrap());
    }

    #[test]
    fn an_object_that_cannot_be_read_is_gone_and_a_line_that_cannot_ends_the_watch() {
        let mut known = listed();
        assert!(
            known
                .apply(&event("MODIFIED", "a", "11", "\"big\""))
                .unwrap()
        );
        assert!(sizes(&known).is_empty());
        assert_eq!(known.version.as_deref(), Some("11"));
        for line in [
            &b"{"[..],
            b"[]",
            b"null",
            br#"{"type": "ADDED"}"#,
            br#"{"type": "ADDED", "object": {}}"#,
            br#"{"type": "ADDED", "object": {"metadata": {"name": "x"}}}"#,
            br#"{"type": "GONE", "object": {"metadata": {"resourceVersion": "1"}}}"#,
            b"\xff\xfe",
        ] {
            let trouble = known.apply(line).unwrap_err();
            assert!(trouble.needs_list(), "{trouble}");
        }
    }

    #[test]
    fn an_error_event_has_its_status() {
        let line = br#"{"type": "ERROR", "object": {"kind": "Status", "code": 410,
            "message": "too old resource version: 1 (5)", "reason": "Expired"}}"#;
        let trouble = listed().apply(line).unwrap_err();
        assert_eq!(trouble.to_string(), "410: too old resource version: 1 (5)");
        assert!(trouble.needs_list() && trouble.is_usual());
    }

    #[test]
    fn the_same_list_again_says_nothing_new() {
        let mut known = listed();
        let same = [("a".to_owned(), Thing { size: 1 })].into();
        assert!(!known.replace(same, "30".to_owned()));
        assert!(known.replace(Objects::new(), "5".to_owned()));
        assert_eq!(known.version.as_deref(), Some("5"));
    }
}
