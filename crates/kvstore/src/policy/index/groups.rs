//! Owners of slots: those whose digests begin alike.

use std::collections::HashMap;

use crate::key::{Group, UNSALTED};

/// What one group has and did since it last had nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStats {
    /// What the group's digests begin with; zero: of requests without a salt.
    pub name: Group,
    pub used: usize,
    /// Blocks found.
    pub hits: u64,
    pub stored: u64,
    pub evictions: u64,
    /// Blocks not let in, for whatever reason.
    pub refused: u64,
}

/// Groups that have something, by number. Numbers are used again.
#[derive(Default)]
pub(super) struct Groups {
    by_name: HashMap<Group, u32>,
    all: Vec<GroupStats>,
    free: Vec<u32>,
}

impl Groups {
    pub(super) fn find(&self, name: Group) -> Option<u32> {
        self.by_name.get(&name).copied()
    }

    /// The group's number; [`close`](Self::close) it when it may have nothing.
    pub(super) fn open(&mut self, name: Group) -> u32 {
        if let Some(group) = self.find(name) {
            return group;
        }
        let group = self.free.pop().unwrap_or_else(|| {
            self.all.push(GroupStats::default());
            self.all.len() as u32 - 1
        });
        self.by_name.insert(name, group);
        self.all[group as usize] = GroupStats {
            name,
            ..GroupStats::default()
        };
        group
    }

    /// Forgets the group if it has nothing: salts come and go.
    pub(super) fn close(&mut self, group: u32) {
        let GroupStats { name, used, .. } = self.all[group as usize];
        if used == 0 && self.find(name) == Some(group) {
            self.by_name.remove(&name);
            self.free.push(group);
        }
    }

    pub(super) fn used(&self, group: u32) -> usize {
        self.all[group as usize].used
    }

    pub(super) fn hit(&mut self, group: u32) {
        self.all[group as usize].hits += 1;
    }

    pub(super) fn refuse(&mut self, group: u32, blocks: usize) {
        self.all[group as usize].refused += blocks as u64;
    }

    pub(super) fn add(&mut self, group: u32) {
        self.all[group as usize].used += 1;
        self.all[group as usize].stored += 1;
    }

    pub(super) fn drop_one(&mut self, group: u32, evicted: bool) {
        let known = &mut self.all[group as usize];
        known.used -= 1;
        known.evictions += u64::from(evicted);
    }

    /// The `top` with most slots, descending, equal ones by name.
    pub(super) fn largest(&self, top: usize) -> Vec<GroupStats> {
        let mut found: Vec<_> = self
            .by_name
            .values()
            .map(|&group| &self.all[group as usize])
            .collect();
        found.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.name.cmp(&b.name)));
        found.into_iter().take(top).cloned().collect()
    }

    pub(super) fn audit(
        &self,
        lanes: impl Iterator<Item = u32>,
        most: usize,
    ) -> Result<(), String> {
        let mut counted = vec![0; self.all.len()];
        lanes.for_each(|lane| counted[lane as usize] += 1);
        for (group, &count) in self.all.iter().zip(&counted) {
            let bounded = group.name != UNSALTED;
            if group.used != count || (bounded && count > most) {
                return Err(format!(
                    "group {:?} has {count} slots, says {}, may have {most}",
                    group.name, group.used
                ));
            }
        }
        let open = counted.iter().filter(|&&count| count > 0).count();
        if open == self.by_name.len() {
            Ok(())
        } else {
            Err(format!("{open} groups, {} by name", self.by_name.len()))
        }
    }
}
