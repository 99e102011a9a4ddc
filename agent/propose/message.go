package propose

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"stoker.io/stoker/agent/ignition/resource"
	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/plan/relpath"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/internal/failure"
)

// Trailers of a commit, and lines of a pull request's body.
const (
	trailerGateway = "Stoker-Gateway"
	trailerBase    = "Stoker-Base"
	trailerChange  = "Stoker-Change"
)

// maxBody bounds the body of a pull request in bytes. Azure DevOps takes 4,000 characters.
const maxBody = 3800

// Identity names a gateway in commits and pull requests.
type Identity struct {
	Namespace, Gateway string
}

func (i Identity) String() string { return i.Namespace + "/" + i.Gateway }

// trailer returns the identity as commits and pull requests name it.
func (i Identity) trailer() string { return plain(i.String(), 400) }

// resources groups files by their resource.
func resources(files []File) map[string][]File {
	groups := map[string][]File{}
	for _, f := range files {
		name := relpath.Parent(f.Path)
		if strings.Contains(path.Base(f.Path), "project.json") {
			name = f.Path
		}
		groups[name] = append(groups[name], f)
	}
	return groups
}

// subject returns the first line of the commit message, which is the title of the pull request.
func subject(id Identity, c *Changes) string {
	groups := resources(c.Files)
	what := fmt.Sprintf("%d resources", len(groups))
	if len(groups) == 1 {
		what = "1 resource"
	}
	if p := project(c.Files); p != "" {
		what += " of " + p
	}
	s := fmt.Sprintf("%s: %s changed", id.Gateway, what)
	if actors := actors(c.Files); len(actors) > 0 {
		s += " by " + actors[0]
	}
	return plain(s, 72)
}

// project returns the project of the files if they all belong to one, otherwise "".
func project(files []File) string {
	name := ""
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Path, "projects/")
		p, _, _ := strings.Cut(rest, "/")
		if !ok || name != "" && p != name {
			return ""
		}
		name = p
	}
	return name
}

// machines are the actors that Ignition records for its own changes. None of them is an author.
var machines = map[string]bool{
	"": true, "external": true, "8.3-migration": true, "theme-manager": true, "initialization": true, "default": true, "unknown": true,
}

// actors returns the users who changed the files, the one with the most files first.
func actors(files []File) []string {
	count := map[string]int{}
	for _, f := range files {
		if a := oneLine(f.Actor, 100); !machines[a] {
			count[a]++
		}
	}
	return slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		if count[a] != count[b] {
			return count[b] - count[a]
		}
		return strings.Compare(a, b)
	})
}

// person returns the person for an actor: the one of authors ("Name <mail>"), or else one whose mail address ends in .invalid, because only
// the gateway vouches for the name.
func person(actor string, id Identity, authors map[string]string, at time.Time) repo.Person {
	if known, ok := authors[actor]; ok {
		if name, mail, ok := strings.Cut(known, " <"); ok {
			return repo.Person{Name: name, Mail: strings.TrimSuffix(mail, ">"), When: at}
		}
	}
	host := strings.ToLower(id.Gateway)
	if id.Namespace != "" {
		host += "." + strings.ToLower(id.Namespace)
	}
	return repo.Person{Name: plain(actor, 100) + " (Ignition)", Mail: mailbox(actor) + "@" + mailbox(host) + ".invalid", When: at}
}

// mailbox returns s with every character that a mail address may not have replaced by a dash.
func mailbox(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("._+-", r)) {
			return r
		}
		return '-'
	}, s)
}

// stoker returns the committer of all commits.
func stoker(at time.Time) repo.Person {
	return repo.Person{Name: "Stoker", Mail: "stoker@stoker.invalid", When: at}
}

// author returns who made most of the changes, and when the last one was made.
func author(id Identity, c *Changes, authors map[string]string, now time.Time) repo.Person {
	at := time.Time{}
	for _, f := range c.Files {
		if t, err := time.Parse(time.RFC3339, f.At); err == nil && t.After(at) && !t.After(now) {
			at = t
		}
	}
	if at.IsZero() {
		at = now
	}
	all := actors(c.Files)
	if len(all) == 0 {
		return stoker(at)
	}
	return person(all[0], id, authors, at)
}

// message returns the commit message. from is the parent of the first commit of the branch.
func message(id Identity, c *Changes, authors map[string]string, from plan.ID) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", subject(id, c))
	for i, f := range c.Files {
		if i == 50 {
			fmt.Fprintf(&b, "and %d more files\n", len(c.Files)-i)
			break
		}
		fmt.Fprintf(&b, "%s %s\n", f.Op, plain(f.Path, 200))
	}
	fmt.Fprintf(&b, "\n%s: %s\n%s: %s\n%s: %s\n", trailerGateway, id.trailer(), trailerBase, from, trailerChange, c.Digest)
	if all := actors(c.Files); len(all) > 1 {
		for _, a := range all[1:min(len(all), 10)] {
			fmt.Fprintf(&b, "Co-authored-by: %s\n", person(a, id, authors, time.Time{}).Address())
		}
	}
	return b.String()
}

// trailers are those of a commit that an agent made.
type trailers struct {
	gateway, change string
	base, parent    plan.ID
}

// readTrailers reads the trailers of a commit; they are empty if an agent did not make it. A commit that a user amends has another
// committer.
func readTrailers(commit []byte) trailers {
	var t trailers
	head, message, _ := strings.Cut(string(commit), "\n\n")
	who := stoker(time.Time{})
	if !strings.Contains(head, fmt.Sprintf("\ncommitter %s <%s> ", who.Name, who.Mail)) {
		return t
	}
	_, parent, _ := strings.Cut(head, "\nparent ")
	parent, _, _ = strings.Cut(parent, "\n")
	t.parent, _ = plan.ParseID(parent)
	for line := range strings.Lines(message) {
		name, value, _ := strings.Cut(strings.TrimRight(line, "\n"), ": ")
		switch name {
		case trailerGateway:
			t.gateway = value
		case trailerBase:
			t.base, _ = plan.ParseID(value)
		case trailerChange:
			t.change = value
		}
	}
	return t
}

// body returns the text of the pull request. All text from the gateway is in code spans, so that the name of a resource cannot become a
// link or an image.
func body(id Identity, c *Changes, deployed plan.ID) string {
	end := fmt.Sprintf("\n%s: `%s`\n%s: `%s`\n", trailerGateway, span(id.String(), 200), trailerBase, deployed)
	var b strings.Builder
	// Lists of Azure DevOps have only the first 400 characters, so the change comes early.
	fmt.Fprintf(&b, "Changes that were saved on the gateway `%s`, which runs `%s`.\n\n%s: `%s`\n\n", span(id.String(), 200), deployed.Short(), trailerChange, c.Digest)
	b.WriteString("The gateway reports the users, and can report any name.\n\n")
	b.WriteString("| resource | what | user | time |\n|---|---|---|---|\n")
	groups := resources(c.Files)
	for i, at := range slices.Sorted(maps.Keys(groups)) {
		row := fmt.Sprintf("| `%s` | %s | `%s` | `%s` |\n", span(at, 200), counts(groups[at]), span(groups[at][0].Actor, 60), span(groups[at][0].At, 30))
		if b.Len()+len(row)+len(end)+200 > maxBody {
			fmt.Fprintf(&b, "\nand %d more resources\n", len(groups)-i)
			break
		}
		b.WriteString(row)
	}
	if slices.ContainsFunc(c.Files, func(f File) bool { return strings.Contains(f.Path, "tag-type-definition") }) {
		b.WriteString("\n**It changes tag types (UDTs): all of their instances change with them.**\n")
	}
	b.WriteString(end)
	return b.String()
}

// counts returns how many files of a resource were added, modified and deleted, as text. The resource.json and the thumbnail count only if
// they are alone.
func counts(files []File) string {
	ops := map[Op]int{}
	for _, f := range files {
		if n := path.Base(f.Path); n != resource.File && n != resource.Thumbnail || len(files) == 1 {
			ops[f.Op]++
		}
	}
	var parts []string
	for _, op := range []Op{Added, Modified, Deleted} {
		if ops[op] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", ops[op], op))
		}
	}
	return strings.Join(parts, ", ")
}

// span returns text that is safe in a code span in a table.
func span(s string, limit int) string {
	return strings.Map(func(r rune) rune {
		if r == '`' || r == '|' {
			return '\''
		}
		return r
	}, plain(s, limit))
}

var (
	// directives replaces characters by wide ones that look the same: those with which a text mentions users, closes issues or skips CI.
	directives = strings.NewReplacer("@", "\uff20", "#", "\uff03", "[", "\uff3b", "]", "\uff3d", "*", "\uff0a", "<", "\uff1c", ">", "\uff1e", "://", "\uff1a//")
	// shortIssue is GH-1, another form of #1.
	shortIssue = regexp.MustCompile(`(?i)\b(GH)-([0-9])`)
)

// plain returns text of a gateway for a commit or a pull request: on one line, and without anything that a forge or a CI system obeys.
func plain(s string, limit int) string {
	return oneLine(shortIssue.ReplaceAllString(directives.Replace(s), "$1\u2011$2"), limit)
}

// oneLine returns s without control and other unprintable characters. It cuts s to limit bytes, with an ellipsis at the end.
func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, ""))
	return failure.Cut(s, limit)
}

// digestOf returns the digest in the body of a pull request, or "".
func digestOf(text string) string {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), trailerChange+":"); ok {
			v = strings.Trim(strings.TrimSpace(v), "`")
			if len(v) == 64 && strings.Trim(v, "0123456789abcdef") == "" {
				return v
			}
		}
	}
	return ""
}
