//! The file as callers see it, and its last entries.

use super::*;
use std::io::Cursor;

pub(super) fn entry(number: u16, account: AccountId) -> AuditEntry {
    AuditEntry {
        time: Timestamp::UNIX_EPOCH,
        request_id: format!("r{number}"),
        account,
        key: Some(KeyId::try_from(account.as_uuid()).unwrap()),
        peer: None,
        by_operator: false,
        method: "POST".to_owned(),
        route: "/sandboxes".to_owned(),
        path: "/sandboxes".to_owned(),
        status: number,
        remote: None,
        left_out: None,
    }
}

fn numbers(found: &[AuditEntry]) -> Vec<u16> {
    found.iter().map(|entry| entry.status).collect()
}

fn lines(count: u16, mine: AccountId, other: AccountId) -> Vec<u8> {
    let mut text = Vec::new();
    for number in 0..count {
        let account = if number % 2 == 0 { mine } else { other };
        text.extend(serde_json::to_vec(&entry(number, account)).unwrap());
        text.push(b'\n');
    }
    text
}

#[test]
fn k7_the_last_entries_are_found_from_the_end() {
    let (mine, other) = (AccountId::LOCAL, AccountId::generate());
    // Some blocks of it.
    let text = lines(2000, mine, other);
    assert!(text.len() as u64 > 3 * BLOCK);
    let read = |limit| tail(&mut Cursor::new(&text), limit, MAX_READ, |entry| entry.account == mine).unwrap();
    assert_eq!(numbers(&read(3)), [1998, 1996, 1994]);
    assert_eq!(numbers(&read(0)), Vec::<u16>::new());
    let all = numbers(&read(5000));
    let expected: Vec<u16> = (0..2000).rev().filter(|number| number % 2 == 0).collect();
    assert_eq!(all, expected);
}

#[test]
fn k7_broken_lines_are_passed_over() {
    let mine = AccountId::LOCAL;
    let mut text = lines(1, mine, mine);
    text.extend(b"{\"torn\": \n\nnonsense\n");
    text.extend(serde_json::to_vec(&entry(7, mine)).unwrap());
    let found = tail(&mut Cursor::new(&text), 10, MAX_READ, |_| true).unwrap();
    assert_eq!(numbers(&found), [7, 0]);
    assert!(tail(&mut Cursor::new(b""), 10, MAX_READ, |_| true).unwrap().is_empty());
}

#[tokio::test]
async fn k7_the_file_is_the_owners_only_and_may_be_moved_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.jsonl");
    std::fs::write(&path, "").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let audit = Audit::open(Some(&path), KeepAudit::default()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), MODE);
    audit.write(entry(1, AccountId::LOCAL)).await;
    assert_eq!(numbers(&audit.last(AccountId::LOCAL, 10).await.unwrap()), [1]);
    std::fs::rename(&path, folder.path().join("old")).unwrap();
    audit.write(entry(2, AccountId::LOCAL)).await;
    assert_eq!(numbers(&audit.last(AccountId::LOCAL, 10).await.unwrap()), [2]);
    assert_eq!(mode(&path), MODE);
    assert!(audit.last(AccountId::generate(), 10).await.unwrap().is_empty());
}

/// Many lines, with room for some: the oldest go, and the newest are found through all files.
#[tokio::test]
async fn k11_the_audit_has_a_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let keep = KeepAudit { age: None, bytes: 64 << 10 };
    let audit = Audit::open(Some(&path), keep).unwrap();
    let mine = AccountId::LOCAL;
    for number in 0..1000 {
        audit.write(entry(number, mine)).await;
    }
    let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap()).collect();
    let total: u64 = files.iter().map(|file| file.metadata().unwrap().len()).sum();
    assert!(files.len() > 2 && total <= 64 << 10, "{} files, {total} bytes", files.len());
    for file in files {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, MODE, "{file:?}");
    }
    let expected: Vec<u16> = (900..1000).rev().collect();
    assert_eq!(numbers(&audit.last(mine, 100).await.unwrap()), expected);
}

/// With room for some lines: one account writes as many as it can, and the others' stay.
#[tokio::test]
async fn k11_no_account_pushes_out_the_lines_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("audit.log");
    let audit = Audit::open(Some(&path), KeepAudit { age: None, bytes: 64 << 10 }).unwrap();
    let (victim, hostile) = (AccountId::generate(), AccountId::generate());
    audit.write(entry(1, victim)).await;
    audit.write(entry(2, AccountId::LOCAL)).await;
    for _ in 0..2000 {
        audit.write(entry(404, hostile)).await;
    }
    assert_eq!(numbers(&audit.last(victim, 10).await.unwrap()), [1]);
    assert_eq!(numbers(&audit.last(AccountId::LOCAL, 10).await.unwrap()), [2]);
    let theirs = audit.last(hostile, 5000).await.unwrap();
    assert!((5..100).contains(&theirs.len()), "{} lines", theirs.len());
    // What was left out is told at the end of the hour, or of the server.
    drop(audit);
    let told = async {
        loop {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            let last = text.lines().last().map(|line| serde_json::from_str::<AuditEntry>(line).unwrap());
            if let Some(last) = last.filter(|last| last.left_out > Some(1)) {
                return last;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    let last = tokio::time::timeout(std::time::Duration::from_secs(10), told).await.unwrap();
    // The first of those that were left out has a line too.
    assert_eq!(theirs.iter().filter(|entry| entry.left_out == Some(1)).count(), 1);
    assert_eq!((last.account, last.left_out), (hostile, Some(2001 - theirs.len() as u64)));
}

/// A disk that takes nothing: callers that hang up leave a bounded number of tasks, and of each account.
#[tokio::test]
async fn k5_hang_ups_leave_a_bounded_number_of_tasks() {
    let segments = Segments { path: "none".into(), keep: KeepAudit::default() };
    let (lines, mut waiting) = mpsc::channel(WAITING);
    let log = Arc::new(Log::new(Arc::new(segments), lines));
    let (hostile, other) = (AccountId::generate(), AccountId::generate());
    let hang_up = |account, number| {
        let (audit, entry) = (Audit(Some(log.clone())), Some(entry(number, account)));
        drop(Pending { audit, entry, mutating: true });
    };
    (0..5000).for_each(|number| hang_up(hostile, number));
    hang_up(other, 1);
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert_eq!(tasks, HUNG_UP_OF_ACCOUNT + 1);
    // The disk is back: what waits is written, the other's line among it.
    let mut found = Vec::new();
    while found.len() < WAITING + tasks {
        found.push(waiting.recv().await.unwrap().entry.account);
    }
    assert!(found.contains(&other));
}
