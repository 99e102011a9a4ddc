// Package guardtest has samples of secrets and paths that package guard must find.
package guardtest

import "strings"

// random is text of high entropy, cut to a length. The literals of this file are split, so that no scanner mistakes them for secrets.
func random(n int) string {
	const s = "a8Fk2Lq9Zx7Wc3Vb6Nm1Ty5Ru4Pe0Od8Sg2Hj7Ki3Lw9Xq6Cz1Bv5Mn4As0Df8Gh2Jk7Qw3Er9Ty6Ui1Op5"
	return s[:n]
}

func hex(n int) string { return strings.Repeat("0a1b2c3d4e5f6978", 5)[:n] }

// Secret is a text with a secret, and the name of the rule that has to find it.
type Secret struct{ Text, Rule string }

// Secrets returns made-up secrets, by a description of each.
func Secrets() map[string]Secret {
	upper := func(n int) string { return strings.Repeat("Q7RZ5MX3KD6WNB2V", 5)[:n] }
	return map[string]Secret{
		"Ignition secret":        {`{"ciphertext":"x","protected":"y","encrypted_key":"z"}`, "embedded secret of Ignition"},
		"Ignition token":         {`{"profile":{"tokenHash":"` + hex(64) + `"}}`, "API key of Ignition"},
		"RSA key":                {"-----BEGIN RSA " + "PRIVATE KEY-----\nMII", "private key"},
		"PKCS8 key":              {"-----BEGIN " + "PRIVATE KEY-----\nMII", "private key"},
		"OpenSSH key":            {"-----BEGIN OPENSSH " + "PRIVATE KEY-----", "private key"},
		"encrypted key":          {"-----BEGIN ENCRYPTED " + "PRIVATE KEY-----", "private key"},
		"PGP key":                {"-----BEGIN PGP " + "PRIVATE KEY BLOCK-----", "private key"},
		"AWS key":                {"aws = AK" + "IA" + upper(16), "AWS access key"},
		"AWS temporary key":      {"aws = AS" + "IA" + upper(16), "AWS access key"},
		"GitHub token":           {"gh" + "p_" + random(36), "GitHub token"},
		"GitHub app token":       {"gh" + "s_" + random(36), "GitHub token"},
		"GitHub fine-grained":    {"github_" + "pat_" + random(70), "GitHub fine-grained token"},
		"GitLab token":           {"gl" + "pat-" + random(20), "GitLab token"},
		"GitLab deploy token":    {"gl" + "dt-" + random(20), "GitLab token"},
		"Slack token":            {"xo" + "xb-123456789012-" + random(20), "Slack token"},
		"Slack webhook":          {"https://hooks." + "slack.com/services/" + random(44), "Slack webhook"},
		"Teams webhook":          {"https://x.webhook." + "office.com/webhookb2/01234567-89ab-cdef-0123-456789abcdef@01234567", "Teams webhook"},
		"Google key":             {"AI" + "za" + random(35), "Google API key"},
		"Google OAuth":           {"GOC" + "SPX-" + random(28), "Google OAuth secret"},
		"Stripe key":             {"sk_" + "live_" + random(24), "Stripe key"},
		"npm token":              {"np" + "m_" + random(36), "npm token"},
		"PyPI token":             {"py" + "pi-AgEI" + random(60), "PyPI token"},
		"Docker token":           {"dckr_" + "pat_" + random(27), "Docker token"},
		"SendGrid":               {"S" + "G." + random(22) + "." + random(43), "SendGrid key"},
		"Twilio":                 {"S" + "K" + hex(32), "Twilio key"},
		"Mailgun":                {"ke" + "y-" + hex(32), "Mailgun key"},
		"DigitalOcean":           {"dop_" + "v1_" + hex(64), "DigitalOcean token"},
		"Vault":                  {"hv" + "s." + random(30), "Vault token"},
		"Grafana":                {"gl" + "sa_" + random(40), "Grafana token"},
		"Databricks":             {"da" + "pi" + hex(32), "Databricks token"},
		"Shopify":                {"shp" + "at_" + hex(32), "Shopify token"},
		"Linear":                 {"lin_" + "api_" + random(40), "Linear key"},
		"age key":                {"AGE-SECRET-" + "KEY-1" + strings.ToUpper(random(58)), "age secret key"},
		"Azure storage":          {"AccountName=x;Account" + "Key=" + random(80) + "==", "Azure storage key"},
		"Azure service bus":      {"Endpoint=sb://x/;SharedAccess" + "Key=" + random(43) + "=", "Azure shared access key"},
		"Azure client secret":    {"abc8" + "Q~" + random(34), "Azure client secret"},
		"JSON web token":         {"ey" + "J" + random(20) + ".ey" + "J" + random(30) + "." + random(40), "JSON web token"},
		"URL with a password":    {"postgres://plant:" + "Tr0ub4dor3@db.example.net/x", "password in a URL"},
		"JDBC with a password":   {"jdbc:sqlserver://db:1433;user=sa;pass" + "word=Tr0ub4dor", "password of a JDBC connection"},
		"script with a password": {`password = "` + random(20) + `"`, "assigned secret"},
		"JSON with a secret":     {`{"clientSecret": "` + random(24) + `"}`, "assigned secret"},
	}
}

// Paths are paths in git that package guard must deny.
var Paths = []string{
	".github/workflows/ci.yml", "site/.gitlab-ci.yml", ".circleci/config.yml", "Jenkinsfile", "site/jenkinsfile", "Jenkinsfile.deploy", "CODEOWNERS",
	"docs/CODEOWNERS", "atlantis.yaml", "site/codefresh.yml", "Bitrise.yml", "netlify.toml", "vercel.json", "Procfile", "azure-pipelines.yml", "bitbucket-pipelines.yml", ".travis.yml", "appveyor.yml", "buildspec.yml", "cloudbuild.yaml",
	".git/hooks/post-checkout", "a/.GIT/config", "git~1/config", "a/.gitmodules", ".gitattributes", "x/.env", "azure-pipelines.yml.", "J\u200benkinsfile",
	"site/certs/server.key", "site/gateway.P12", "a/store.jks", "site/users.json", "config/resources/core/ignition/api-token/x/config.json",
	"config/resources/core/ignition/internal-secret-provider/x/config.json", "a/b\x01c", "a/\xff", "backup.gwbk",
}
