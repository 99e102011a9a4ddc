package guard

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// random is text of high entropy, cut to a length. The literals of this file are split, so that no scanner takes them for secrets.
func random(n int) string {
	const s = "a8Fk2Lq9Zx7Wc3Vb6Nm1Ty5Ru4Pe0Od8Sg2Hj7Ki3Lw9Xq6Cz1Bv5Mn4As0Df8Gh2Jk7Qw3Er9Ty6Ui1Op5"
	return s[:n]
}

func hex(n int) string { return strings.Repeat("0a1b2c3d4e5f6978", 5)[:n] }

// TestContent: P3.
func TestContent(t *testing.T) {
	upper := func(n int) string { return strings.Repeat("Q7RZ5MX3KD6WNB2V", 5)[:n] }
	for name, tc := range map[string]struct{ text, rule string }{
		"Ignition secret":             {`{"ciphertext":"x","protected":"y","encrypted_key":"z"}`, "embedded secret of Ignition"},
		"Ignition token":              {`{"profile":{"tokenHash":"` + hex(64) + `"}}`, "API token of Ignition"},
		"RSA key":                     {"-----BEGIN RSA " + "PRIVATE KEY-----\nMII", "private key"},
		"PKCS8 key":                   {"-----BEGIN " + "PRIVATE KEY-----\nMII", "private key"},
		"OpenSSH key":                 {"-----BEGIN OPENSSH " + "PRIVATE KEY-----", "private key"},
		"encrypted key":               {"-----BEGIN ENCRYPTED " + "PRIVATE KEY-----", "private key"},
		"PGP key":                     {"-----BEGIN PGP " + "PRIVATE KEY BLOCK-----", "private key"},
		"AWS key":                     {"aws = AK" + "IA" + upper(16), "AWS access key"},
		"AWS temporary key":           {"aws = AS" + "IA" + upper(16), "AWS access key"},
		"GitHub token":                {"gh" + "p_" + random(36), "GitHub token"},
		"GitHub app token":            {"gh" + "s_" + random(36), "GitHub token"},
		"GitHub fine-grained":         {"github_" + "pat_" + random(70), "GitHub fine-grained token"},
		"GitLab token":                {"gl" + "pat-" + random(20), "GitLab token"},
		"GitLab deploy token":         {"gl" + "dt-" + random(20), "GitLab token"},
		"Slack token":                 {"xo" + "xb-123456789012-" + random(20), "Slack token"},
		"Slack webhook":               {"https://hooks." + "slack.com/services/" + random(44), "Slack webhook"},
		"Teams webhook":               {"https://x.webhook." + "office.com/webhookb2/01234567-89ab-cdef-0123-456789abcdef@01234567", "Teams webhook"},
		"Google key":                  {"AI" + "za" + random(35), "Google API key"},
		"Google OAuth":                {"GOC" + "SPX-" + random(28), "Google OAuth secret"},
		"Stripe key":                  {"sk_" + "live_" + random(24), "Stripe key"},
		"npm token":                   {"np" + "m_" + random(36), "npm token"},
		"PyPI token":                  {"py" + "pi-AgEI" + random(60), "PyPI token"},
		"Docker token":                {"dckr_" + "pat_" + random(27), "Docker token"},
		"SendGrid":                    {"S" + "G." + random(22) + "." + random(43), "SendGrid key"},
		"Twilio":                      {"S" + "K" + hex(32), "Twilio key"},
		"Mailgun":                     {"ke" + "y-" + hex(32), "Mailgun key"},
		"DigitalOcean":                {"dop_" + "v1_" + hex(64), "DigitalOcean token"},
		"Vault":                       {"hv" + "s." + random(30), "Vault token"},
		"Grafana":                     {"gl" + "sa_" + random(40), "Grafana token"},
		"Databricks":                  {"da" + "pi" + hex(32), "Databricks token"},
		"Shopify":                     {"shp" + "at_" + hex(32), "Shopify token"},
		"Linear":                      {"lin_" + "api_" + random(40), "Linear key"},
		"age key":                     {"AGE-SECRET-" + "KEY-1" + strings.ToUpper(random(58)), "age secret key"},
		"Azure storage":               {"AccountName=x;Account" + "Key=" + random(80) + "==", "Azure storage key"},
		"Azure service bus":           {"Endpoint=sb://x/;SharedAccess" + "Key=" + random(43) + "=", "Azure shared access key"},
		"Azure client secret":         {"abc8" + "Q~" + random(34), "Azure client secret"},
		"JSON web token":              {"ey" + "J" + random(20) + ".ey" + "J" + random(30) + "." + random(40), "JSON web token"},
		"URL with a password":         {"postgres://plant:" + "Tr0ub4dor3@db.example.net/x", "password in a URL"},
		"JDBC with a password":        {"jdbc:sqlserver://db:1433;user=sa;pass" + "word=Tr0ub4dor", "password of a JDBC connection"},
		"script with a password":      {`password = "` + random(20) + `"`, "assigned secret"},
		"JSON with a secret":          {`{"clientSecret": "` + random(24) + `"}`, "assigned secret"},
		"a secret deep in a big file": {strings.Repeat(`{"x":1,"name":"label"}`, 40_000) + "gh" + "p_" + random(36), "GitHub token"},
	} {
		t.Run(name, func(t *testing.T) {
			rule, found := Content("view.json", []byte(tc.text))
			assert.True(t, found)
			assert.Equal(t, tc.rule, rule)
		})
	}
	for name, text := range map[string]string{
		"a view":                 `{"custom":{},"params":{"password":""},"props":{"type":"password-field","placeholder":"Password"},"root":{"type":"ia.container.flex"}}`,
		"a binding":              `{"password":"{[.]Parameters/password}","token":"{this.custom.token}"}`,
		"a script":               "def login(user, password):\n\treturn system.security.validateUser(user, password)\n",
		"a signature":            `{"attributes":{"lastModificationSignature":"` + hex(64) + `","lastModification":{"actor":"admin"}}}`,
		"an empty file":          "",
		"a reference":            `{"type":"Referenced","data":{"providerName":"vault","secretName":"db-password"}}`,
		"a URL without password": "https://user@example.com/x and https://example.com:8443/x@y",
		"a placeholder":          `password = "changeme-changeme"`,
		"a picture":              "\x89PNG\r\n\x1a\n" + strings.Repeat("\x00\xff", 5000),
		"a UUID":                 `{"uuid":"01234567-89ab-cdef-0123-456789abcdef"}`,
	} {
		t.Run(name, func(t *testing.T) {
			rule, found := Content("file", []byte(text))
			assert.False(t, found, rule)
		})
	}
}

func TestPath(t *testing.T) {
	for _, source := range []string{
		".github/workflows/ci.yml", "site/.gitlab-ci.yml", ".circleci/config.yml", "Jenkinsfile", "site/jenkinsfile", "Jenkinsfile.deploy", "CODEOWNERS",
		"docs/CODEOWNERS", "azure-pipelines.yml", "bitbucket-pipelines.yml", ".travis.yml", "appveyor.yml", "buildspec.yml", "cloudbuild.yaml",
		".git/hooks/post-checkout", "a/.GIT/config", "git~1/config", "a/.gitmodules", ".gitattributes", "x/.env", "azure-pipelines.yml.", "J\u200benkinsfile",
		"site/certs/server.key", "site/gateway.P12", "a/store.jks", "site/users.json", "config/resources/core/ignition/api-token/x/config.json",
		"config/resources/core/ignition/internal-secret-provider/x/config.json", "a/b\x01c", "a/\xff", "backup.gwbk",
	} {
		t.Run(strings.ToValidUTF8(source, "?"), func(t *testing.T) {
			_, denied := Path("projects/x/file", source)
			assert.True(t, denied)
		})
	}
	t.Run("the path on the gateway counts, too", func(t *testing.T) {
		for _, dest := range []string{"config/local/x", "config/resources/core/ignition/api-token/x/config.json", "projects/x/server.pem"} {
			_, denied := Path(dest, "site/harmless")
			assert.True(t, denied, dest)
		}
	})
	for _, source := range []string{
		"site/projects/line/project.json", "site/projects/line/com.inductiveautomation.perspective/views/Main/view.json", "site/projects/line/ignition/script-python/keys/code.py",
		"config/resources/core/ignition/tag-definition/default/tags.json", "a/Makefile", "site/projects/x/ignition/named-query/users/query.sql",
	} {
		t.Run(source, func(t *testing.T) {
			rule, denied := Path(strings.TrimPrefix(source, "site/"), source)
			assert.False(t, denied, rule)
		})
	}
}

// TestRealTrees scans real repositories, if STOKER_TREES names a folder of them. Only files that hold credentials are found: a change of an
// ordinary resource must not be refused.
func TestRealTrees(t *testing.T) {
	root := os.Getenv("STOKER_TREES")
	if root == "" {
		t.Skip("STOKER_TREES is not set: it names a folder with checked-out Ignition repositories")
	}
	holds := []string{"/database-connection/", "/opc-connection/", "/secret-provider/", "/system-properties/"}
	require.NoError(t, filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || slices.ContainsFunc(holds, func(h string) bool { return strings.Contains(p, h) }) {
			return err
		}
		b, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if rule, found := Content(p, b); found {
			t.Errorf("%s: %s", strings.TrimPrefix(p, root), rule)
		}
		return nil
	}))
}

func FuzzContent(f *testing.F) {
	f.Add([]byte(`{"password":"x"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		rule, _ := Content("f", b)
		assert.LessOrEqual(t, len(rule), 40)
	})
}

func BenchmarkContent(b *testing.B) {
	text := []byte(strings.Repeat(`{"type":"ia.display.label","props":{"text":"password of the token","style":{"classes":"x"}}}`, 11_000))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		Content("view.json", text)
	}
}
