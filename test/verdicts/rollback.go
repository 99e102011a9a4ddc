package verdicts

func autoRollback() []Case {
	auto := func(snapshots bool, fields O) O {
		a := O{"enabled": true}
		merge(a, fields)
		return O{"autoRollback": a, "snapshots": O{"enabled": snapshots}}
	}
	rollout := O{"enabled": true, "scope": "rollout"}
	staged := func(deployment O) O { return O{"autoRollback": rollout, "deployment": deployment} }
	const field = "spec.autoRollback."
	return []Case{
		good("automatic rollback with the defaults", auto(true, nil)),
		good("every field of automatic rollback", auto(true, O{"triggers": L{"configError", "scanFailure", "projectLoadError"}, "scope": "gateway"})),
		good("automatic rollback of a rollout in stages", staged(O{"stages": L{O{"name": "dev", "gateways": L{"dev-*"}}}})),
		good("automatic rollback of a rollout in an order", staged(O{"syncOrder": L{O{"name": "dev-*"}}})),
		good("automatic rollback of a rollout after a dry run", O{"autoRollback": rollout, "validation": O{"dryRunBefore": true}}),
		good("automatic rollback of a rollout that is off", O{"autoRollback": O{"scope": "rollout"}}),
		good("automatic rollback that is off", O{"autoRollback": O{"scope": "gateway"}}),
		bad("automatic rollback without snapshots", field+"enabled", auto(false, nil)),
		bad("automatic rollback of gateways without snapshots", field+"enabled", O{"autoRollback": O{"enabled": true, "scope": "gateway"}}),
		bad("automatic rollback of a rollout without steps", field+"scope", O{"autoRollback": rollout}),
		bad("automatic rollback of a rollout without a dry run", field+"scope", O{"autoRollback": rollout, "validation": O{"dryRunBefore": false}}),
		bad("automatic rollback of a rollout with empty stages", field+"scope", staged(O{"stages": L{}, "syncOrder": L{}})),
		bad("triggers of a rollout", field+"triggers", O{"autoRollback": O{"scope": "rollout", "triggers": L{"scanFailure"}}}),
		bad("unknown trigger", field+"triggers[0]", auto(true, O{"triggers": L{"logLine"}})),
		bad("duplicate trigger", field+"triggers[1]", auto(true, O{"triggers": L{"scanFailure", "scanFailure"}})),
		bad("unknown scope", field+"scope", auto(true, O{"scope": "fleet"})),
	}
}
