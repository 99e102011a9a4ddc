// Package guard decides what must never leave a gateway: files that only the gateway may have, files that a forge or a CI system would
// execute, and secrets. Path checks the path of a file, and Content its bytes. Both return only the name of a rule, so that no content of
// the file reaches a log or a status.
package guard

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"stoker.io/stoker/agent/ignition/resource"
)

// extensions are the file extensions of keystores, keys, modules, backups and internal databases.
var extensions = map[string]bool{
	".jks": true, ".p12": true, ".pfx": true, ".pem": true, ".key": true, ".modl": true, ".gwbk": true, ".idb": true, ".keystore": true, ".der": true,
}

// credentialDirs are directories whose files hold credentials.
var credentialDirs = map[string]bool{"api-token": true, "internal-secret-provider": true}

// executed are files that CI systems and forges run or obey in any directory. If a mapping covers the root of the repository, a script on
// the gateway could otherwise add one of them.
var executed = names(`
	jenkinsfile codeowners azure-pipelines.yml azure-pipelines.yaml bitbucket-pipelines.yml bitbucket-pipelines.yaml appveyor.yml
	buildspec.yml buildspec.yaml cloudbuild.yaml cloudbuild.yml cloudbuild.json action.yml action.yaml renovate.json renovate.json5
	codemagic.yaml wercker.yml
	amplify.yml amplify.yaml apprunner.yaml appspec.yml appspec.yaml atlantis.yaml bitrise.yml bitrise.yaml bors.toml circle.yml
	codefresh.yml codefresh.yaml codeship-services.yml codeship-steps.yml devfile.yaml earthfile env0.yml env0.yaml firebase.json fly.toml
	heroku.yml netlify.toml nixpacks.toml okteto.yml okteto.yaml pipelines.yml procfile railway.json railway.toml readthedocs.yml
	readthedocs.yaml render.yaml screwdriver.yaml skaffold.yaml tiltfile vercel.json wrangler.json wrangler.jsonc wrangler.toml zuul.yaml
`)

// names returns the set of the words of a list.
func names(list string) map[string]bool {
	set := map[string]bool{}
	for name := range strings.FieldsSeq(list) {
		set[name] = true
	}
	return set
}

// Path checks dest, the path of a file in the data directory, and source, its path in git. It returns the name of the rule that denies the
// file.
func Path(dest, source string) (rule string, denied bool) {
	if resource.NeverTouch(dest) {
		return "belongs to the gateway", true
	}
	for _, p := range []string{dest, source} {
		if rule, denied := checkPath(p); denied {
			return rule, true
		}
	}
	for name := range strings.SplitSeq(source, "/") {
		if strings.HasPrefix(folded(name), ".") {
			return "path with a dot", true
		}
		if resource.IsGitDir(name) {
			return "git's own folder", true
		}
	}
	if n := folded(path.Base(source)); executed[n] || strings.HasPrefix(n, "jenkinsfile.") {
		return "file that CI executes", true
	}
	return "", false
}

// checkPath applies the rules that are the same for both paths.
func checkPath(p string) (string, bool) {
	if !utf8.ValidString(p) || strings.ContainsFunc(p, unicode.IsControl) {
		return "name that is not plain text", true
	}
	for name := range strings.SplitSeq(p, "/") {
		if credentialDirs[folded(name)] {
			return "folder with credentials", true
		}
	}
	base := folded(path.Base(p))
	switch {
	case extensions[path.Ext(base)]:
		return "keystore, key, module or backup", true
	case base == "users.json":
		return "file with users", true
	}
	return "", false
}

// folded returns the name that a file system may treat as equal to name: in lower case, without characters that have no width, and, as
// on Windows, without dots and spaces at the end.
func folded(name string) string {
	name = strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return unicode.ToLower(r)
	}, name)
	if trimmed := strings.TrimRight(name, ". "); trimmed != "" {
		return trimmed
	}
	return name
}

// rule finds one kind of secret. It tries its expression only at its keywords, so that the cost stays linear.
type rule struct {
	name     string
	keywords []string // lower case
	pattern  string   // matches from the keyword on
	before   int      // the match begins this many bytes before the keyword
	inWord   bool     // whether the keyword also counts in the middle of a word
	entropy  float64  // minimum for the last group of the pattern, in bits per byte, which also must be no placeholder; 0 for no check

	once sync.Once
	re   *regexp.Regexp
}

// rules are ordered from the most specific to the most general. Each expression is compiled at its first use.
var rules = []*rule{
	{name: "private key", keywords: []string{"-----begin "}, inWord: true, pattern: `-----BEGIN [A-Z ]{0,40}PRIVATE KEY( BLOCK)?-----`},
	{name: "AWS access key", keywords: []string{"akia", "asia", "abia", "acca"}, pattern: `((?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b`, entropy: 3},
	{name: "GitHub token", keywords: []string{"ghp_", "gho_", "ghu_", "ghs_", "ghr_"}, pattern: `gh[pousr]_[0-9A-Za-z]{36}\b`},
	{name: "GitHub fine-grained token", keywords: []string{"github_pat_"}, pattern: `github_pat_[0-9A-Za-z_]{60,}`},
	{name: "GitLab token", keywords: []string{"glpat-", "gldt-", "glptt-", "glrt-"}, pattern: `gl(?:pat|dt|ptt|rt)-[0-9A-Za-z_-]{20,}`},
	{name: "Slack token", keywords: []string{"xox"}, pattern: `xox[abposre]-[0-9A-Za-z-]{10,}`},
	{name: "Slack webhook", keywords: []string{"hooks.slack.com"}, inWord: true, pattern: `hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9+/]{40,}`},
	{name: "Teams webhook", keywords: []string{"webhook.office.com"}, inWord: true, pattern: `webhook\.office\.com/webhookb2/[0-9a-f-]{36}@`},
	{name: "Google API key", keywords: []string{"aiza"}, pattern: `(AIza[0-9A-Za-z_-]{35})\b`, entropy: 3},
	{name: "Google OAuth secret", keywords: []string{"gocspx-"}, pattern: `GOCSPX-[0-9A-Za-z_-]{28}`},
	{name: "Stripe key", keywords: []string{"sk_live_", "rk_live_", "sk_test_", "rk_test_"}, pattern: `[sr]k_(?:live|test)_[0-9A-Za-z]{16,}`},
	{name: "npm token", keywords: []string{"npm_"}, pattern: `npm_[0-9A-Za-z]{36}\b`},
	{name: "PyPI token", keywords: []string{"pypi-"}, pattern: `pypi-AgEI[0-9A-Za-z_-]{50,}`},
	{name: "Docker token", keywords: []string{"dckr_pat_"}, pattern: `dckr_pat_[0-9A-Za-z_-]{27}`},
	{name: "Hugging Face token", keywords: []string{"hf_"}, pattern: `hf_[A-Za-z]{34}\b`},
	{name: "OpenAI key", keywords: []string{"sk-"}, pattern: `sk-(?:proj-|svcacct-)?[0-9A-Za-z_-]{20,}T3BlbkFJ[0-9A-Za-z_-]{20,}`},
	{name: "Anthropic key", keywords: []string{"sk-ant-"}, pattern: `sk-ant-[a-z0-9]+-[0-9A-Za-z_-]{60,}`},
	{name: "SendGrid key", keywords: []string{"sg."}, pattern: `SG\.[0-9A-Za-z_-]{22}\.[0-9A-Za-z_-]{43}`},
	{name: "Twilio key", keywords: []string{"sk"}, pattern: `(SK[0-9a-f]{32})\b`, entropy: 3},
	{name: "Mailgun key", keywords: []string{"key-"}, pattern: `key-[0-9a-f]{32}\b`},
	{name: "DigitalOcean token", keywords: []string{"dop_v1_", "doo_v1_"}, pattern: `do[op]_v1_[0-9a-f]{64}\b`},
	{name: "Vault token", keywords: []string{"hvs.", "hvb."}, pattern: `hv[sb]\.[0-9A-Za-z_-]{24,}`},
	{name: "Grafana token", keywords: []string{"glsa_", "glc_"}, pattern: `gl(?:sa|c)_[0-9A-Za-z+/_]{32,}`},
	{name: "Databricks token", keywords: []string{"dapi"}, pattern: `dapi[0-9a-f]{32}\b`},
	{name: "Shopify token", keywords: []string{"shpat_", "shpss_"}, pattern: `shp(?:at|ss)_[0-9a-fA-F]{32}\b`},
	{name: "Linear key", keywords: []string{"lin_api_"}, pattern: `lin_api_[0-9A-Za-z]{40}`},
	{name: "age secret key", keywords: []string{"age-secret-key-1"}, pattern: `AGE-SECRET-KEY-1[0-9A-Z]{58}`},
	{name: "Azure storage key", keywords: []string{"accountkey"}, pattern: `(?i)AccountKey=[0-9A-Za-z+/]{60,}={0,2}`},
	{name: "Azure shared access key", keywords: []string{"sharedaccesskey"}, pattern: `(?i)SharedAccessKey=[0-9A-Za-z+/]{40,}={0,2}`},
	{name: "Azure client secret", keywords: []string{"q~"}, before: 4, pattern: `[0-9A-Za-z_~.-]{3}[78]Q~[0-9A-Za-z_~.-]{31,34}\b`},
	{name: "JSON web token", keywords: []string{"eyj"}, pattern: `eyJ[0-9A-Za-z_-]{15,}\.eyJ[0-9A-Za-z_-]{15,}\.[0-9A-Za-z_-]{20,}`},
	{name: "password in a URL", keywords: []string{"://"}, inWord: true, pattern: `://[^\s"'/@:<>{}$]{1,80}:([^\s"'/@<>{}$*]{6,80})@[a-zA-Z0-9]`, entropy: 2.3},
	{name: "password of a JDBC connection", keywords: []string{"jdbc:"}, pattern: `(?i)jdbc:[^\s"']{5,300}[;?&](?:password|pwd)=([^;&\s"'{}$]{4,100})`, entropy: 1.9},
	{name: "assigned secret", keywords: []string{"password", "passwd", "secret", "apikey", "api_key", "access_key", "accesskey", "auth_token", "authtoken"}, inWord: true,
		pattern: `(?i)[a-z_]{4,12}["']?\s{0,5}[:=]\s{0,5}["']([0-9A-Za-z+/=_~!@#%^*.-]{12,150})["']`, entropy: 3.5},
}

// Content checks the bytes of a file. It returns the name of the rule that finds a secret. A compressed file that cannot be searched counts as
// one, and so does an error of content. The cost is linear in the size, and the memory is bounded.
//
// Ignition stores scripts as JSON strings, in which it writes = as \u003d, and it compresses data.bin. So Content also checks the decoded
// strings of a JSON file, and the decompressed content of a gzip file.
func Content(content io.Reader) (rule string, found bool) {
	in := bufio.NewReader(content)
	if head, _ := in.Peek(len(gzipMagic)); bytes.Equal(head, gzipMagic) {
		inside, err := gzip.NewReader(in)
		if err != nil {
			return unsearchable, true
		}
		return (&searcher{}).stream(inside, maxInside)
	}
	return (&searcher{}).stream(in, math.MaxInt64)
}

const unsearchable = "compressed file that cannot be searched"

// Sizes of the pieces in bytes that are searched at once. The overlap is longer than any secret with its keyword, so that one piece contains
// the whole secret.
const (
	pieceSize = 256 << 10
	overlap   = 16 << 10
)

// searcher searches a file. Its buffers serve all pieces.
type searcher struct {
	embedded             resource.EmbeddedFinder
	piece, lower, inside []byte
}

// stream searches what r has. More than limit bytes, and an error of r, count as found.
func (s *searcher) stream(r io.Reader, limit int64) (rule string, found bool) {
	for {
		var err error
		for err == nil && len(s.piece) < pieceSize {
			if len(s.piece) == cap(s.piece) { // small files are frequent
				s.piece = slices.Grow(s.piece, min(max(len(s.piece), 4<<10), pieceSize-len(s.piece)))
			}
			var n int
			n, err = r.Read(s.piece[len(s.piece):min(cap(s.piece), pieceSize)])
			s.piece = s.piece[:len(s.piece)+n]
			limit -= int64(n)
		}
		switch rule, found = s.searchPiece(); {
		case found:
			return rule, true
		case limit < 0 || err != nil && !errors.Is(err, io.EOF):
			return unsearchable, true
		case err != nil:
			return "", false
		}
		s.piece = append(s.piece[:0], s.piece[len(s.piece)-overlap:]...)
	}
}

// searchPiece searches s.piece, first as it is and then with its JSON strings decoded.
func (s *searcher) searchPiece() (rule string, found bool) {
	content := s.piece
	if rule, found = s.search(content); found {
		return rule, true
	}
	for range maxNested {
		if bytes.IndexByte(content, '\\') < 0 {
			break
		}
		s.inside = unescape(slices.Grow(s.inside[:0], len(content)), content)
		if len(s.inside) == len(content) {
			break
		}
		content = s.inside
		if rule, found = s.search(content); found {
			return rule, true
		}
	}
	return "", false
}

// maxNested is how often searchPiece unescapes a text. A script in a view is escaped once, and JSON in this script twice.
const maxNested = 2

// maxInside is the maximum size of a decompressed file in bytes.
const maxInside = 64 << 20

var gzipMagic = []byte{0x1f, 0x8b, 0x08}

// unescape appends content to out with the escapes of JSON strings decoded. Characters beyond ASCII stay escaped, because no rule needs them.
// out may have the memory of content.
func unescape(out, content []byte) []byte {
	for i := 0; i < len(content); i++ {
		c := content[i]
		if c != '\\' || i+1 == len(content) {
			out = append(out, c)
			continue
		}
		next := content[i+1]
		if at := strings.IndexByte(escapes, next); at >= 0 {
			out = append(out, escaped[at])
			i++
			continue
		}
		if next == 'u' && i+6 <= len(content) {
			if n, err := strconv.ParseUint(string(content[i+2:i+6]), 16, 16); err == nil && n < utf8.RuneSelf {
				out = append(out, byte(n))
				i += 5
				continue
			}
		}
		out = append(out, c)
	}
	return out
}

// The characters that can follow a backslash, and the characters that they stand for.
const (
	escapes = `"\/bfnrt`
	escaped = "\"\\/\b\f\n\r\t"
)

// search searches content as it is.
func (s *searcher) search(content []byte) (rule string, found bool) {
	s.lower = asciiLower(s.lower[:0], content) // unlike bytes.ToLower, keeps every offset
	lower := s.lower
	if s.embedded.Add(lower); s.embedded.Found() {
		return "embedded secret of Ignition", true
	}
	if bytes.Contains(lower, []byte(`"tokenhash"`)) {
		return "API key of Ignition", true
	}
	for _, r := range rules {
		if r.finds(content, lower) {
			return r.name, true
		}
	}
	return "", false
}

// window is the maximum distance in bytes from the start of a keyword to the end of its secret.
const window = 512

// finds reports whether content has a secret of this kind. lower is content with its ASCII letters in lower case.
func (r *rule) finds(content, lower []byte) bool {
	for _, k := range r.keywords {
		for from := 0; ; {
			i := bytes.Index(lower[from:], []byte(k))
			if i < 0 {
				break
			}
			i += from
			from = i + len(k)
			if r.inWord || i == 0 || !isWord(lower[i-1]) || r.before > 0 {
				if r.matches(content[max(0, i-r.before):min(len(content), i+window)]) {
					return true
				}
			}
		}
	}
	return false
}

// isWord reports whether c can be part of a word.
func isWord(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' }

// matches reports whether text begins with a secret of this kind.
func (r *rule) matches(text []byte) bool {
	r.once.Do(func() { r.re = regexp.MustCompile(`\A(?:` + r.pattern + `)`) })
	m := r.re.FindSubmatch(text)
	if m == nil {
		return false
	}
	value := m[len(m)-1]
	return r.entropy == 0 || entropy(value) >= r.entropy && !placeholder(value)
}

// placeholder reports whether a value is obviously not a real secret.
func placeholder(value []byte) bool {
	s := strings.ToLower(string(value))
	for _, p := range []string{"example", "changeme", "placeholder", "redacted", "xxxx", "****", "your", "dummy"} {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}

// entropy returns the Shannon entropy of b in bits per byte.
func entropy(b []byte) float64 {
	var count [256]int
	for _, c := range b {
		count[c]++
	}
	h := 0.0
	for _, n := range count {
		if n > 0 {
			p := float64(n) / float64(len(b))
			h -= p * math.Log2(p)
		}
	}
	return h
}

// asciiLower appends b to out with its ASCII letters in lower case.
func asciiLower(out, b []byte) []byte {
	out = append(out, b...)
	for i, c := range out {
		if c >= 'A' && c <= 'Z' {
			out[i] = c + 'a' - 'A'
		}
	}
	return out
}
