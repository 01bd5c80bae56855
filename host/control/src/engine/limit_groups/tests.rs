use super::*;

fn mbit(rate: u64) -> Limit {
    Limit { bits_per_second: rate * 1_000_000, burst_bytes: 65536 }
}

fn shared(
    tenant: u32,
    of_tenant: Option<u64>,
    of_policy: Option<(&str, u64)>,
) -> (TenantId, CommonLimits<Limit>) {
    let of_policy = of_policy.map(|(name, rate)| (name.to_owned(), mbit(rate)));
    (TenantId(tenant), CommonLimits { of_tenant: of_tenant.map(mbit), of_policy })
}

/// Commands as words: a group, where it is, whether it is limited; a vNIC, its rate, its group.
fn words(commands: Vec<Command>) -> String {
    let number = |group: Option<LimitGroup>| group.map_or("-".into(), |group| group.0.to_string());
    let word = |command: Command| match command {
        Command::SetGroup { unit: LimitUnit::Operations, group, within, limit } => {
            format!("group {} in {} {}", group.0, number(within), limit.is_some())
        }
        Command::SetLimit { unit: LimitUnit::Operations, vnic, limit, group } => {
            let rate = limit.map_or(0, |limit| limit.bits_per_second / 1_000_000);
            format!("vnic {} {rate} in {}", vnic.0, number(group))
        }
        Command::CloseGroup { unit: LimitUnit::Operations, group } => format!("close {}", group.0),
        other => panic!("{other:?}"),
    };
    commands.into_iter().map(word).collect::<Vec<_>>().join(", ")
}

#[test]
fn groups_reach_the_engine_before_their_members() {
    let mut groups = LimitGroups::new(LimitUnit::Operations);
    let mut limit = |vnic, own: Option<u64>, shared: (TenantId, CommonLimits<Limit>)| {
        words(groups.limit(VnicId(vnic), own.map(mbit), shared, 0))
    };
    assert_eq!(limit(1, None, shared(0, None, None)), "vnic 1 0 in -");
    assert_eq!(limit(1, None, shared(0, None, None)), "", "as it was");
    assert_eq!(limit(2, Some(8), shared(5, Some(9), None)), "group 1 in - true, vnic 2 8 in 1");
    // A policy in two tenants is a group in each.
    let gold = Some(("gold", 7));
    assert_eq!(limit(3, None, shared(5, Some(9), gold)), "group 2 in 1 true, vnic 3 0 in 2");
    let both = "group 3 in - false, group 4 in 3 true, vnic 4 0 in 4";
    assert_eq!(limit(4, None, shared(6, None, gold)), both);
    // Another limit of the tenant: its group is told once, and each of its vNICs.
    assert_eq!(limit(2, Some(8), shared(5, Some(10), None)), "group 1 in - true, vnic 2 8 in 1");
    assert_eq!(limit(3, None, shared(5, Some(10), gold)), "vnic 3 0 in 2");
    // Out of all groups.
    assert_eq!(limit(2, Some(8), shared(5, None, None)), "vnic 2 8 in -");
}

#[test]
fn a_policy_has_one_limit_across_tenants() {
    let mut groups = LimitGroups::new(LimitUnit::Operations);
    groups.limit(VnicId(1), None, shared(1, None, Some(("gold", 7))), 0);
    groups.limit(VnicId(2), None, shared(2, None, Some(("gold", 7))), 0);
    groups.limit(VnicId(3), None, shared(2, Some(9), Some(("lead", 7))), 0);
    let names: Vec<_> = groups.limiters.keys().map(|key| key.policy.as_deref()).collect();
    assert_eq!(names, [Some("gold"), Some("lead"), None]);
}

#[test]
fn empty_groups_are_closed_inner_ones_first() {
    let mut groups = LimitGroups::new(LimitUnit::Operations);
    groups.limit(VnicId(1), None, shared(5, Some(9), Some(("gold", 7))), 0);
    groups.limit(VnicId(2), None, shared(5, Some(9), None), 0);
    assert_eq!(words(groups.close_empty()), "");
    groups.leave(VnicId(1));
    assert_eq!(words(groups.close_empty()), "close 2");
    groups.limit(VnicId(1), None, shared(5, Some(9), Some(("gold", 7))), 0);
    groups.limit(VnicId(2), None, shared(0, None, None), 0);
    groups.leave(VnicId(1));
    assert_eq!(words(groups.close_empty()), "close 3, close 1");
    assert!(groups.groups.is_empty() && groups.limiters.is_empty());
    // One that comes again is a new one.
    let made = words(groups.limit(VnicId(1), None, shared(5, Some(9), None), 0));
    assert_eq!(made, "group 4 in - true, vnic 1 0 in 4");
}

#[test]
fn limits_are_shown_with_their_owners_and_units() {
    let (_, limits) = shared(0, Some(9), Some(("gold", 7)));
    let show = |limit: &Limit| format!("{}mbit", limit.bits_per_second / 1_000_000);
    let of =
        |limits: &CommonLimits<Limit>, own: Option<u64>| limits.show(own.map(mbit), "blue", show);
    assert_eq!(
        of(&limits, Some(8)),
        "8mbit of its own, 7mbit of policy gold, 9mbit of tenant blue"
    );
    assert_eq!(of(&shared(0, Some(9), None).1, None), "9mbit of tenant blue");
    assert_eq!(of(&CommonLimits::default(), Some(8)), "8mbit of its own");
}
