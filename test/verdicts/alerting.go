package verdicts

func alerting() []Case {
	ref := func(key string) O { return O{"name": "alerts", "key": key} }
	hook := func(w O) O { return O{"alerting": O{"enabled": true, "webhooks": L{w}}} }
	const field = "spec.alerting.webhooks[0]."
	return []Case{
		good("alerting that is empty", O{"alerting": O{}}),
		good("slack", hook(O{"type": "slack", "urlSecretRef": ref("url")})),
		good("pagerduty", hook(O{"type": "pagerduty", "integrationKeySecretRef": ref("key"), "topics": L{"NotReady", "ScanFailed", "AutoRollbackPerformed"}})),
		good("a webhook with a signature", hook(O{"type": "webhook", "urlSecretRef": ref("url"), "signingSecretRef": ref("key"), "topics": L{"SyncCompleted", "Ready"}})),
		good("teams with a private authority", hook(O{"type": "teams", "urlSecretRef": ref("url"), "caSecretRef": ref("ca")})),
		good("a commit status", hook(O{"type": "commit-status", "integrationKeySecretRef": ref("token"), "caSecretRef": ref("ca"), "topics": L{}})),
		bad("a commit status without a token", field+"integrationKeySecretRef", hook(O{"type": "commit-status"})),
		bad("a commit status with a URL", field+"urlSecretRef", hook(O{"type": "commit-status", "integrationKeySecretRef": ref("token"), "urlSecretRef": ref("url")})),
		bad("a commit status with topics", field+"topics", hook(O{"type": "commit-status", "integrationKeySecretRef": ref("token"), "topics": L{"Ready"}})),
		bad("an authority without a key", field+"caSecretRef.key", hook(O{"type": "slack", "urlSecretRef": ref("url"), "caSecretRef": O{"name": "alerts"}})),
		bad("a webhook without a type", field+"type", hook(O{"urlSecretRef": ref("url")})),
		bad("another type", field+"type", hook(O{"type": "telegram", "urlSecretRef": ref("url")})),
		bad("slack without a URL", field+"urlSecretRef", hook(O{"type": "slack"})),
		bad("pagerduty without a key", field+"integrationKeySecretRef", hook(O{"type": "pagerduty"})),
		bad("slack with a key", field+"integrationKeySecretRef", hook(O{"type": "slack", "urlSecretRef": ref("url"), "integrationKeySecretRef": ref("key")})),
		bad("slack with a signature", field+"signingSecretRef", hook(O{"type": "slack", "urlSecretRef": ref("url"), "signingSecretRef": ref("key")})),
		bad("a Secret without a key", field+"urlSecretRef.key", hook(O{"type": "slack", "urlSecretRef": O{"name": "alerts"}})),
		bad("an unknown word", field+"topics[0]", hook(O{"type": "slack", "urlSecretRef": ref("url"), "topics": L{"Everything"}})),
		bad("a word twice", field+"topics[1]", hook(O{"type": "slack", "urlSecretRef": ref("url"), "topics": L{"Ready", "Ready"}})),
		bad("news for pagerduty", field+"topics[0]", hook(O{"type": "pagerduty", "integrationKeySecretRef": ref("key"), "topics": L{"SyncCompleted"}})),
		bad("nine webhooks", "spec.alerting.webhooks", O{"alerting": O{"webhooks": times(9, func(int) any { return O{"type": "slack", "urlSecretRef": ref("url")} })}}),
	}
}
