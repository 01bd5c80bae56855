use super::*;

const MARKS: Marks = Marks { boot: 1, daemon: 2 };

fn at(attachment: Attachment, inode: u64, serial: Option<u64>) -> Evidence {
    Evidence { attachment, place: [4, inode], serial }
}

fn registry(names: &[&str]) -> Registry {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    Registry::new(MARKS, &at(Attachment::Namespace, 1, Some(1)), &names)
}

/// What must hold of vNICs whatever they are attached by.
fn of_each_kind(check: impl Fn(&dyn Fn(u64, Option<u64>) -> Evidence)) {
    for attachment in [Attachment::Namespace, Attachment::Double] {
        check(&|inode, serial| at(attachment, inode, serial));
    }
}

#[test]
fn the_same_evidence_is_the_same_vnic_and_numbers_never_come_back() {
    of_each_kind(|at| {
        let mut registry = registry(&[]);
        let one = registry.recognize(&at(7, Some(20)));
        let other = registry.recognize(&at(8, Some(21)));
        assert!(one != other && one != registry.home());
        registry.hold(one);
        assert_eq!(registry.recognize(&at(7, Some(20))), one);
        registry.release(one);
        // It has come back.
        assert_eq!(registry.recognize(&at(7, Some(20))), one);
        // Another in its place.
        let next = registry.recognize(&at(7, Some(22)));
        assert!(next > other, "counted on");
        assert!(registry.news().contains(&News::Gone(one)));
        let back = registry.recognize(&at(7, Some(20)));
        assert!(back > next, "not even to the same one");
    });
}

#[test]
fn settings_by_name_do_not_pass_to_the_next_vnic() {
    of_each_kind(|at| {
        let mut registry = registry(&[]);
        let old = registry.recognize(&at(7, Some(20)));
        registry.hold(old);
        let name = registry.name(old).to_owned();
        assert_eq!(registry.named(&name), Some(old));
        registry.keep(old).unwrap();
        registry.release(old);
        assert_eq!(registry.named(&name), Some(old), "something is set for it");
        let new = registry.recognize(&at(7, Some(21)));
        registry.hold(new);
        assert!(!registry.is_kept(new));
        assert_ne!(registry.name(new), name);
        assert_eq!(registry.named(&name), None, "it is no more");
    });
}

#[test]
fn a_vnic_without_a_serial_escapes_no_limit() {
    of_each_kind(|at| {
        let mut registry = registry(&[]);
        let one = registry.recognize(&at(7, Some(20)));
        registry.keep(one).unwrap();
        assert_eq!(registry.recognize(&at(7, None)), one);
        // A held namespace cannot be another.
        let other = registry.recognize(&at(8, None));
        registry.hold(other);
        assert_eq!(registry.recognize(&at(8, Some(30))), other);
        registry.keep(other).unwrap();
        // But the one that comes after it may be any.
        registry.release(other);
        assert_ne!(registry.recognize(&at(8, None)), other);
        assert!(!registry.is_kept(other));
    });
}

#[test]
fn the_next_daemon_derives_the_same_identity() {
    of_each_kind(|at| {
        let introduced = |serial| {
            let mut registry = registry(&[]);
            registry.recognize(&at(7, Some(serial)));
            let mut news = registry.news().into_iter().filter_map(|news| match news {
                News::New(id, identity, _) if id != VnicId(1) => Some(identity),
                _ => None,
            });
            news.next_back().unwrap()
        };
        let identity = introduced(20);
        assert_eq!(introduced(20), identity);
        let next = introduced(21);
        assert!(next.proof != identity.proof && next.name != identity.name);
    });
    // And no kind is taken for the other.
    let mut registry = registry(&[]);
    let pair = [Attachment::Namespace, Attachment::Double];
    let [one, other] = pair.map(|kind| registry.recognize(&at(kind, 7, Some(20))));
    assert_ne!(one, other);
    assert_ne!(registry.name(one), registry.name(other));
    let news = registry.news().into_iter().map(|news| match news {
        News::New(_, identity, _) => (identity.proof, identity.guid),
        other => panic!("{other:?}"),
    });
    let proofs: Vec<_> = news.collect();
    assert!(proofs[1].0 != proofs[2].0 && proofs[1].1 != proofs[2].1);
}

#[test]
fn an_inode_number_names_the_namespace_that_has_it_and_nothing_else() {
    let mut registry = registry(&["net-7", "host"]);
    let namespace = |serial| at(Attachment::Namespace, 7, Some(serial));
    assert_eq!(registry.named("net-7"), None, "no vNIC is there");
    let old = registry.recognize(&namespace(20));
    registry.hold(old);
    assert_eq!(registry.named("net-7"), Some(old));
    let double = registry.recognize(&at(Attachment::Double, 9, Some(20)));
    registry.hold(double);
    assert_eq!((registry.named("net-9"), registry.inode(double)), (None, None));
    let alias = |registry: &mut Registry| {
        registry.news().into_iter().rev().find_map(|news| match news {
            News::New(id, identity, _) if id != double => Some(identity.alias),
            _ => None,
        })
    };
    let meant = Some("net-7".to_owned());
    assert_eq!(alias(&mut registry), Some(meant.clone()));
    registry.keep(old).unwrap();
    registry.release(old);
    assert_eq!(registry.named("net-7"), None, "the holder of that number is not known now");
    // The kernel gives the number to another.
    let new = registry.recognize(&namespace(21));
    registry.hold(new);
    assert_eq!(registry.named("net-7"), Some(new));
    let news = registry.news();
    assert!(news.contains(&News::NotMeant(new, 7)), "{news:?}");
    assert!(
        news.iter().any(|n| matches!(n, News::New(_, identity, _) if identity.alias.is_none()))
    );
    // To the first one it still belongs.
    registry.release(new);
    registry.recognize(&namespace(20));
    assert_eq!(alias(&mut registry), Some(meant));
    assert_eq!(registry.named("net-1"), None, "that is the host");
    assert_eq!(registry.named("host"), Some(registry.home()));
}

#[test]
fn remembered_vnics_are_bounded_and_needed_ones_stay() {
    let mut registry = registry(&[]);
    let many = RESTING_MAX as u64 + 100;
    let namespace = |n| at(Attachment::Namespace, 100 + n, Some(100 + n));
    let held = registry.recognize(&namespace(0));
    registry.hold(held);
    let kept = registry.recognize(&namespace(1));
    registry.keep(kept).unwrap();
    for n in 2..many {
        registry.recognize(&namespace(n));
    }
    assert_eq!(registry.entries.len(), RESTING_MAX + 3);
    assert_eq!(registry.resting.len(), RESTING_MAX);
    assert_eq!(registry.by_slot.len(), registry.entries.len());
    assert_eq!(registry.by_name.len(), registry.entries.len());
    assert_eq!(registry.recognize(&namespace(0)), held);
    assert_eq!(registry.recognize(&namespace(1)), kept);
    assert_eq!(registry.kept_from(VnicId(0)), Some(kept));
}
