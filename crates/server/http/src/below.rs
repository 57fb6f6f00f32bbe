//! Paths below a root.

/// Whether `path` is `root` or lies below it. A trailing slash of `root` is ignored.
pub fn is_below(path: &str, root: &str) -> bool {
    let rest = path.strip_prefix(root.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_segments_count() {
        for root in ["/v1/models", "/v1/models/"] {
            assert!(is_below("/v1/models", root) && is_below("/v1/models/org/m", root));
            assert!(!is_below("/v1/modelsx", root) && !is_below("/v1", root));
            assert!(!is_below("/V1/models", root) && !is_below("", root));
        }
        assert!(is_below("/", "/") && is_below("/x", "/"));
    }
}
