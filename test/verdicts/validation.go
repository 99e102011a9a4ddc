package verdicts

import "strings"

// validation returns the cases of spec.validation.
func validation() []Case {
	// webhook returns a webhook with one field changed, or removed if value is nil.
	webhook := func(key string, value any) O {
		w := O{"url": "https://validator.example.com/plan"}
		if w[key] = value; value == nil {
			delete(w, key)
		}
		return O{"validation": O{"webhook": w}}
	}
	const field = "spec.validation.webhook."
	ref := O{"name": "validator", "key": "hmac"}
	cases := each([]string{"https://a", "https://10.1.2.3:8443/plan?token=b", "https://[fd00::1]/", "https://a/" + strings.Repeat("a", 2038)}, "the address of a webhook",
		func(name, v string) Case { return good(name, webhook("url", v)) })
	cases = append(cases, each([]string{"", "http://a", "https://", "https:///a", "https://-a", "https://user:password@a", "https://a/#b", "https://a b", "https://a\n", "a",
		"https://a/" + strings.Repeat("a", 2039)}, "the address of a webhook", func(name, v string) Case { return bad(name, field+"url", webhook("url", v)) })...)
	cases = append(cases, each([]string{"999ms", "61s", "10", "-1s", "1h"}, "the timeout of a webhook", func(name, v string) Case { return bad(name, field+"timeout", webhook("timeout", v)) })...)
	return append(cases,
		good("no validation", O{"validation": O{}}),
		good("no check of references", O{"validation": O{"references": "ignore"}}),
		good("commits without missing references", O{"validation": O{"references": "refuse"}}),
		bad("an unknown policy for references", "spec.validation.references", O{"validation": O{"references": "off"}}),
		good("a webhook with the defaults", webhook("timeout", nil)),
		good("every field of a webhook", O{"validation": O{"webhook": O{"url": "https://a/", "timeout": "1m", "secretRef": ref, "caSecretRef": ref, "failurePolicy": "Ignore"}}}),
		bad("a webhook without an address", field+"url", webhook("url", nil)),
		bad("an unknown failure policy", field+"failurePolicy", webhook("failurePolicy", "fail")),
		bad("a reference to a Secret without a name", field+"secretRef.name", webhook("secretRef", O{"key": "a"})),
		bad("a reference to certificates without a key", field+"caSecretRef.key", webhook("caSecretRef", O{"name": "a"})),
	)
}
