//! Whatever bytes a state file, a record, a list or a file of rules has: no panic, and what is read is what was
//! written.

use seawall_sync::{
    ignore::Rules,
    path,
    protocol::codec::{self, Encoder},
    state::{Limits, StateFile},
    versions::Record,
};

pub fn state(data: &[u8]) {
    let limits = Limits::default();
    if let Ok(state) = StateFile::parse(data, &limits) {
        assert!(state.tree.misplaced().is_none());
        assert!(state.tree.iter().all(|(name, _)| path::check(name.as_bytes()).is_ok()));
        let again = StateFile::parse(&state.to_json(), &limits).expect("what was written is read");
        assert_eq!(again, state);
        assert_eq!(again.tree.digest(), state.tree.digest());
    }
    let _ = StateFile::parse_local(data, &limits);
    if let Ok(record) = Record::parse(data) {
        assert_eq!(Record::parse(&record.to_json()).expect("what was written is read"), record);
    }
    if let Ok(items) = codec::decode(data) {
        let mut encoder = Encoder::default();
        let parts: Vec<Vec<u8>> = items.iter().filter_map(|item| encoder.add(item)).collect();
        let bytes = parts.into_iter().chain(encoder.finish()).collect::<Vec<_>>().concat();
        assert_eq!(codec::decode(&bytes).expect("what was written is read"), items);
    }
    let (rules, names) = data.split_at(data.len() / 2);
    let rules = Rules::parse(rules);
    let _ = rules.verdict(names, names.len() % 2 == 0);
}
