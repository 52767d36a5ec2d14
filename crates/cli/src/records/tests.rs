//! Records on a real folder: whole, unique, and shared by threads.

use super::*;
use jiff::Timestamp;
use seawall_api::sandbox::{SandboxSpec, SandboxState};
use std::collections::BTreeSet;

fn record(name: Option<&str>) -> Record {
    Record {
        id: SandboxId::generate(),
        name: name.map(str::to_owned),
        provider: "local".into(),
        state: SandboxState::Creating,
        reason: None,
        spec: SandboxSpec::default(),
        created_at: Timestamp::now(),
        started_at: None,
        removing: None,
        unsynced: None,
    }
}

fn opened() -> (tempfile::TempDir, FileRecords) {
    let data = tempfile::tempdir().unwrap();
    let records = FileRecords::open(data.path()).unwrap();
    (data, records)
}

#[tokio::test]
async fn what_was_written_is_read() {
    let (data, records) = opened();
    let (first, mut second) = (record(Some("one")), record(None));
    records.insert(&first).await.unwrap();
    records.insert(&second).await.unwrap();
    second.state = SandboxState::Running;
    records.update(&second).await.unwrap();

    let again = FileRecords::open(data.path()).unwrap();
    assert_eq!(again.get(first.id).await.unwrap(), Some(first.clone()));
    assert_eq!(again.list().await.unwrap(), [first.clone(), second.clone()]);

    again.remove(first.id).await.unwrap();
    again.remove(first.id).await.unwrap();
    assert_eq!(again.get(first.id).await.unwrap(), None);
    assert_eq!(records.list().await.unwrap(), [second]);
}

#[tokio::test]
async fn refusals_have_their_kinds() {
    let (_data, records) = opened();
    let first = record(Some("one"));
    records.insert(&first).await.unwrap();
    let twice = records.insert(&first).await.unwrap_err();
    assert_eq!(twice.kind(), ErrorKind::AlreadyExists);
    let taken = records.insert(&record(Some("one"))).await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Conflict);
    let unknown = records.update(&record(None)).await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_damaged_record_spoils_only_itself() {
    let (data, records) = opened();
    let (whole, broken) = (record(None), record(None));
    records.insert(&whole).await.unwrap();
    records.insert(&broken).await.unwrap();
    let path = data.path().join("records").join(format!("{}.json", broken.id));
    std::fs::write(&path, "{ \"id\": ").unwrap();

    assert_eq!(records.list().await.unwrap(), [whole]);
    let error = records.get(broken.id).await.unwrap_err();
    assert!(error.chain().contains(&path.display().to_string()), "{}", error.chain());
    records.remove(broken.id).await.unwrap();
    assert_eq!(records.get(broken.id).await.unwrap(), None);
}

#[test]
fn one_of_two_gets_the_name() {
    let (data, records) = opened();
    let other = FileRecords::open(data.path()).unwrap();
    for round in 0..20 {
        let name = format!("name-{round}");
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads = [&records, &other].map(|records| {
                let record = record(Some(&name));
                scope.spawn(move || records.folder.insert_locked(&record))
            });
            threads.map(|thread| thread.join().unwrap()).into_iter().collect()
        });
        let refused: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].kind(), ErrorKind::Conflict);
    }
}

#[test]
fn epochs_only_grow() {
    let (data, _records) = opened();
    let given: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let records = FileRecords::open(data.path()).unwrap();
                scope.spawn(move || (0..125).map(|_| records.folder.next_epoch().unwrap()).collect())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(given.iter().all(|each| each.windows(2).all(|pair| pair[0] < pair[1])));
    let distinct: BTreeSet<u64> = given.into_iter().flatten().collect();
    assert_eq!(distinct.len(), 1000);
    assert_eq!(distinct.last(), Some(&1000));
}

#[test]
fn a_damaged_counter_still_grows() {
    let (data, records) = opened();
    assert_eq!(records.folder.next_epoch().unwrap(), 1);
    std::fs::write(data.path().join("records/.epoch"), "nonsense").unwrap();
    let next = records.folder.next_epoch().unwrap();
    assert!(next > 1_000_000);
    assert_eq!(records.folder.next_epoch().unwrap(), next + 1);
}

#[test]
fn others_cannot_read_them() {
    use std::os::unix::fs::PermissionsExt;
    let (data, records) = opened();
    let one = record(None);
    records.folder.insert(&one).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data.path().join("records")), 0o700);
    assert_eq!(mode(&records.folder.file(one.id)), 0o600);
}
