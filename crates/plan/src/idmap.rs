//! Mapping of owners and groups, including ids inside POSIX ACLs.
use crate::acl;
use dmover_model::IdRule;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

/// Maps user and group ids by tables of ranges, or by names; any other id is unchanged.
#[derive(Debug, Clone, Default)]
pub struct IdentityMap {
    users: Table,
    groups: Table,
    by_name: Option<Arc<dyn OwnersByName>>,
    projects: Table,
}

/// Owners of the source by their names.
pub trait OwnersByName: Debug + Send + Sync {
    /// The destination's number for the user with this number at the source. `None`: the destination has no user of that
    /// name, or the number has no name.
    fn user(&self, id: u32) -> Option<u32>;

    /// The same for a group.
    fn group(&self, id: u32) -> Option<u32>;
}

/// Rules with their places, so that tables of thousands of users cost one look each.
#[derive(Debug, Clone, Default)]
struct Table {
    singles: HashMap<u32, (usize, u32)>,
    ranges: Vec<(usize, IdRule)>,
}

impl Table {
    fn new(rules: Vec<IdRule>) -> Self {
        let mut table = Self::default();
        for (place, rule) in rules.into_iter().enumerate() {
            if rule.count == 1 {
                table.singles.entry(rule.from).or_insert((place, rule.to));
            } else {
                table.ranges.push((place, rule));
            }
        }
        table
    }

    fn is_empty(&self) -> bool {
        self.singles.is_empty() && self.ranges.is_empty()
    }

    /// `by_name` is asked about ids that have no rule of their own, before the rule for all others.
    fn map(&self, id: u32, by_name: impl FnOnce() -> Option<u32>) -> u32 {
        let covers = |rule: &IdRule| {
            rule.count == 0 || id.checked_sub(rule.from).is_some_and(|offset| offset < rule.count)
        };
        let single = self.singles.get(&id);
        let range = self.ranges.iter().find(|(_, rule)| covers(rule));
        match (single, range) {
            (Some((place, to)), Some((other, _))) if place < other => *to,
            (Some((_, to)), None) => *to,
            (_, Some((_, IdRule { to, count: 0, .. }))) => by_name().unwrap_or(*to),
            (_, Some((_, rule))) => rule.to.wrapping_add(id - rule.from),
            (None, None) => by_name().unwrap_or(id),
        }
    }
}

impl IdentityMap {
    /// A map with these rules; the first rule that covers an id applies.
    pub fn new(users: Vec<IdRule>, groups: Vec<IdRule>) -> Self {
        let (users, groups) = (Table::new(users), Table::new(groups));
        Self { users, groups, ..Self::default() }
    }

    /// The same, with names for ids that have no rule of their own.
    #[must_use]
    pub fn by_name(self, names: Arc<dyn OwnersByName>) -> Self {
        Self { by_name: Some(names), ..self }
    }

    /// The same, with rules for project ids.
    #[must_use]
    pub fn projects(self, rules: Vec<IdRule>) -> Self {
        Self { projects: Table::new(rules), ..self }
    }

    /// The destination's project id. An entry without a project (0) gets none.
    pub fn project(&self, id: u32) -> u32 {
        if id == 0 { 0 } else { self.projects.map(id, || None) }
    }

    /// Whether every user and group is unchanged.
    pub fn is_identity(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty() && self.by_name.is_none()
    }

    /// The destination's user id.
    pub fn user(&self, id: u32) -> u32 {
        self.users.map(id, || self.by_name.as_ref()?.user(id))
    }

    /// The destination's group id.
    pub fn group(&self, id: u32) -> u32 {
        self.groups.map(id, || self.by_name.as_ref()?.group(id))
    }

    /// Maps the ids in the value of a `system.posix_acl_*` attribute. Users or groups that get one id become one entry, with the
    /// permissions of all of them: acl(5) allows one for each id. `None`: the value is not an ACL.
    pub fn posix_acl(&self, value: &[u8]) -> Option<Vec<u8>> {
        if !acl::is_valid(value) {
            return None;
        }
        let mut mapped = value.to_vec();
        for entry in mapped[4..].chunks_exact_mut(8) {
            let tag = u16::from_le_bytes([entry[0], entry[1]]);
            let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            let new = match tag {
                acl::USER => self.user(id),
                acl::GROUP => self.group(id),
                _ => id,
            };
            entry[4..].copy_from_slice(&new.to_le_bytes());
        }
        Some(acl::joined(&mapped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> IdentityMap {
        let users = vec![
            IdRule { from: 1000, to: 5000, count: 10 },
            IdRule { from: 0, to: 65534, count: 1 },
        ];
        IdentityMap::new(users, vec![IdRule { from: 100, to: 200, count: 1 }])
    }

    #[test]
    fn ranges_map_and_the_rest_stays() {
        let map = table();
        assert_eq!((map.user(1009), map.user(1010), map.user(0)), (5009, 1010, 65534));
        assert_eq!((map.group(100), map.group(101)), (200, 101));
    }

    #[test]
    fn names_count_for_ids_without_a_rule_of_their_own() {
        #[derive(Debug)]
        struct Names;
        impl OwnersByName for Names {
            fn user(&self, id: u32) -> Option<u32> {
                [1000, 7, 8].contains(&id).then_some(id + 1)
            }
            fn group(&self, id: u32) -> Option<u32> {
                (id == 100 || id == 7).then_some(9)
            }
        }
        let map = table().by_name(Arc::new(Names));
        assert_eq!((map.user(1000), map.user(7), map.user(9)), (5000, 8, 9));
        assert_eq!((map.group(100), map.group(7), map.group(8)), (200, 9, 8));
        let others =
            vec![IdRule { from: 8, to: 80, count: 1 }, IdRule { from: 0, to: 99, count: 0 }];
        let map = IdentityMap::new(others, Vec::new()).by_name(Arc::new(Names));
        assert_eq!((map.user(7), map.user(8), map.user(9)), (8, 80, 99));
        assert!(!map.is_identity());
    }

    #[test]
    fn the_first_rule_that_covers_an_id_wins() {
        let rule = |from, to, count| IdRule { from, to, count };
        let rules = vec![
            rule(5, 50, 1),
            rule(0, 100, 10),
            rule(7, 70, 1),
            rule(5, 51, 1),
            rule(20, 200, 1),
            rule(0, 99, 0),
            rule(20, 201, 5),
        ];
        let wanted = |id: u32| {
            let covers = |r: &&IdRule| r.count == 0 || (id >= r.from && id - r.from < r.count);
            let rule = rules.iter().find(covers).unwrap();
            if rule.count == 0 { rule.to } else { rule.to + (id - rule.from) }
        };
        let map = IdentityMap::new(rules.clone(), Vec::new());
        for id in (0..40).chain([u32::MAX]) {
            assert_eq!(map.user(id), wanted(id), "{id}");
        }
        assert_eq!([map.user(5), map.user(7), map.user(20), map.user(1000)], [50, 107, 200, 99]);
    }

    #[test]
    fn acl_entries_are_mapped_by_their_tag() {
        let entry = |tag: u16, id: u32| {
            [&tag.to_le_bytes()[..], &7u16.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let acl = |user, group| {
            let all =
                [2u32.to_le_bytes().to_vec(), entry(1, u32::MAX), entry(2, user), entry(8, group)];
            all.concat()
        };
        assert_eq!(table().posix_acl(&acl(1001, 100)), Some(acl(5001, 200)));
        // Two users become one, and the others stay in order.
        let both = |entries: &[(u16, u16, u32)]| {
            let each = entries.iter().map(|(tag, permissions, id)| {
                [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
            });
            [2u32.to_le_bytes().to_vec(), each.collect::<Vec<_>>().concat()].concat()
        };
        let two = both(&[(1, 6, u32::MAX), (2, 4, 5001), (2, 1, 1001), (2, 2, 7), (8, 4, 5001)]);
        let one = both(&[(1, 6, u32::MAX), (2, 2, 7), (2, 5, 5001), (8, 4, 5001)]);
        assert_eq!(table().posix_acl(&two), Some(one));
        assert_eq!(table().posix_acl(b"\x02\0\0\0junk"), None);
        assert_eq!(table().posix_acl(b""), None);
    }
}
