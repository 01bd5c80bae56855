use super::*;
use crate::objects::Tenant;
use std::os::unix::fs::{PermissionsExt, symlink};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("omniverb-state-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("objects.json")
    }

    fn open(&self) -> (StateFile, ObjectSet) {
        StateFile::open(Some(self.file()), &ObjectSet::default())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn blue() -> ObjectSet {
    let mut set = ObjectSet::default();
    set.tenant.insert("blue".into(), Tenant::default());
    set
}

#[test]
fn written_objects_reach_the_next_daemon() {
    let folder = Folder::new("kept");
    let (mut state, found) = folder.open();
    assert_eq!((state.problem(), found), (None, ObjectSet::default()));
    state.write(&blue()).unwrap();
    let (mut next, found) = folder.open();
    assert_eq!((next.problem(), found), (None, blue()));
    next.write(&ObjectSet::default()).unwrap();
    assert_eq!(folder.open().1, ObjectSet::default());
    let mode = std::fs::metadata(folder.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn a_damaged_file_is_named_and_not_touched_until_it_is_moved_away() {
    let folder = Folder::new("damaged");
    folder.open().0.write(&blue()).unwrap();
    let whole = std::fs::read_to_string(folder.file()).unwrap();
    let torn = &whole[..whole.len() / 2];
    for (text, word) in [
        (torn, "EOF"),
        ("", "EOF"),
        ("{\"version\": 2}", "version"),
        ("{\"version\": 1, \"objects\": {\"tenants\": {}}}", "tenants"),
        ("{\"version\": 1, \"objects\": {\"vnic\": {\"a\": {\"tenant\": \"red\"}}}}", "red"),
    ] {
        std::fs::write(folder.file(), text).unwrap();
        let (mut state, found) = folder.open();
        assert_eq!(found, ObjectSet::default(), "{text}");
        let problem = state.problem().unwrap();
        assert!(problem.contains("objects.json") && problem.contains(word), "{problem}");
        assert_eq!(state.write(&blue()), Err(problem));
        assert_eq!(std::fs::read_to_string(folder.file()).unwrap(), text);
        std::fs::remove_file(folder.file()).unwrap();
        state.write(&blue()).unwrap();
        assert_eq!(folder.open().1, blue());
    }
}

#[test]
fn a_file_that_others_may_write_is_refused() {
    let folder = Folder::new("others");
    folder.open().0.write(&blue()).unwrap();
    std::fs::set_permissions(folder.file(), PermissionsExt::from_mode(0o666)).unwrap();
    assert!(folder.open().0.problem().unwrap().contains("others may write it"));
    std::fs::rename(folder.file(), folder.0.join("other")).unwrap();
    symlink(folder.0.join("other"), folder.file()).unwrap();
    assert!(folder.open().0.problem().is_some());
}

#[test]
fn a_failed_write_is_reported() {
    let folder = Folder::new("nowhere");
    let path = folder.0.join("missing").join("objects.json");
    let (mut state, _) = StateFile::open(Some(path), &ObjectSet::default());
    assert!(state.write(&blue()).unwrap_err().contains("cannot write the state file"));
    let (mut none, _) = StateFile::open(None, &ObjectSet::default());
    none.write(&blue()).unwrap();
}

#[test]
fn what_the_next_daemon_would_not_read_is_not_written() {
    let folder = Folder::new("large");
    let (mut state, _) = folder.open();
    state.write(&blue()).unwrap();
    let before = std::fs::read(folder.file()).unwrap();
    let rules: Vec<String> = (0..32).map(|n| format!("ingress deny all from 10.0.0.{n}")).collect();
    let policy = serde_json::json!({ "rule": rules });
    let mut set = blue();
    for n in 0..16_000 {
        set.policy.insert(format!("p{n}"), serde_json::from_value(policy.clone()).unwrap());
    }
    let problem = state.write(&set).unwrap_err();
    assert!(problem.contains("more than 16 MiB"), "{problem}");
    assert_eq!(std::fs::read(folder.file()).unwrap(), before);
}
