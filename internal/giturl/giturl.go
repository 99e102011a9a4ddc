// Package giturl compares repository addresses, and makes links to the web pages of a repository. A sender may write an address in another
// form than the GatewaySync does: https instead of ssh, with or without .git.
package giturl

import (
	"cmp"
	"io/fs"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1/syntax"
)

// The providers of forges, as spec.bidirectional.provider names them.
const (
	GitHub      = "github"
	GitLab      = "gitlab"
	Gitea       = "gitea" // and Forgejo
	Bitbucket   = "bitbucket"
	AzureDevOps = "azuredevops"
)

// providers has the providers of the public hosts.
var providers = map[string]string{
	"github.com": GitHub, "gitlab.com": GitLab, "bitbucket.org": Bitbucket, "codeberg.org": Gitea, "gitea.com": Gitea,
	"dev.azure.com": AzureDevOps, "ssh.dev.azure.com": AzureDevOps,
}

// sshHosts maps each host that serves ssh at port 443 to the host of its web pages.
var sshHosts = map[string]string{"ssh.github.com": "github.com", "altssh.gitlab.com": "gitlab.com", "altssh.bitbucket.org": "bitbucket.org"}

// PageHost returns the host of the web pages for the host of a repository's address. They differ only for hosts that serve ssh at port 443.
func PageHost(host string) string {
	host = strings.ToLower(host)
	return cmp.Or(sshHosts[host], host)
}

// ProviderOf returns the provider of the host of a repository, or "" if the host is not a known one.
func ProviderOf(repository string) string {
	host, _, ok := split(repository)
	host = PageHost(host)
	switch {
	case !ok:
		return ""
	case providers[host] != "":
		return providers[host]
	case strings.HasSuffix(host, ".ghe.com"):
		return GitHub
	case strings.HasSuffix(host, ".visualstudio.com"):
		return AzureDevOps
	}
	return ""
}

// webHost is the form of a host in a link, with an optional port.
var webHost = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?(:[0-9]{1,5})?$`)

// Web makes links to the pages of a repository. Links of the zero value are empty.
type Web struct{ base, provider string }

// WebOf returns the pages of a repository. provider may be "": then the host decides. If the provider is not known, or the address cannot
// be a link, the links are empty. The address may be hostile: a link has the scheme https or http, the host of the address or of its web pages,
// no user, and an escaped path, so that it is safe in a page and in a message.
func WebOf(repository, provider string) Web {
	if provider == "" {
		provider = ProviderOf(repository)
	}
	host, path, ok := split(repository)
	if !ok || host == "" {
		return Web{}
	}
	scheme := "https"
	if u, err := url.Parse(strings.TrimSpace(repository)); err == nil && (strings.EqualFold(u.Scheme, "https") || strings.EqualFold(u.Scheme, "http")) {
		scheme, host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
	}
	host = PageHost(host)
	parts := strings.Split(path, "/")
	if provider == AzureDevOps {
		host, parts = azurePage(host, parts)
	}
	if !webHost.MatchString(host) || len(parts) < 2 || provider == GitHub && len(parts) != 2 || provider == Bitbucket && len(parts) != 2 {
		return Web{}
	}
	for i, part := range parts {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return Web{}
		}
		parts[i] = url.PathEscape(part)
	}
	return Web{scheme + "://" + host + "/" + strings.Join(parts, "/"), provider}
}

// azurePage returns the host and the path of the page of a repository on Azure DevOps, or "" and nil if the path has another form. They differ
// from those of its address for ssh.
func azurePage(host string, parts []string) (string, []string) {
	switch {
	case len(parts) == 4 && parts[0] == "v3": // host:v3/organization/project/name
		return "dev.azure.com", []string{parts[1], parts[2], "_git", parts[3]}
	case len(parts) >= 3 && parts[len(parts)-2] == "_git":
		return host, parts
	}
	return "", nil
}

// isCommit reports whether a text is the id of a commit. An id of zeros means that there is no commit.
func isCommit(text string) bool { return syntax.IsCommit(text) && strings.Trim(text, "0") != "" }

// Commit returns the link to a commit, or "".
func (w Web) Commit(commit string) string {
	if !isCommit(commit) {
		return ""
	}
	switch w.provider {
	case GitHub, Gitea, AzureDevOps:
		return w.base + "/commit/" + commit
	case GitLab:
		return w.base + "/-/commit/" + commit
	case Bitbucket:
		return w.base + "/commits/" + commit
	}
	return ""
}

// File returns the link to a file of a commit, or "". path may be hostile.
func (w Web) File(commit, path string) string {
	if !isCommit(commit) || !fs.ValidPath(path) || path == "." {
		return ""
	}
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	file := commit + "/" + strings.Join(parts, "/")
	switch w.provider {
	case GitHub:
		return w.base + "/blob/" + file
	case Gitea:
		return w.base + "/src/commit/" + file
	case GitLab:
		return w.base + "/-/blob/" + file
	case Bitbucket:
		return w.base + "/src/" + file
	case AzureDevOps:
		return w.base + "?" + url.Values{"path": {"/" + path}, "version": {"GC" + commit}}.Encode()
	}
	return ""
}

// Compare returns the link to what changed in the files from one commit to another, also if the second one is older, or "".
func (w Web) Compare(from, to string) string {
	if !isCommit(from) || !isCommit(to) || strings.EqualFold(from, to) {
		return ""
	}
	switch w.provider {
	case GitHub, Gitea: // with three dots, they show nothing if to is older
		return w.base + "/compare/" + from + ".." + to
	case GitLab:
		return w.base + "/-/compare/" + from + "..." + to + "?straight=true"
	case Bitbucket:
		return w.base + "/branches/compare/" + to + ".." + from + "#diff"
	case AzureDevOps:
		return w.base + "/branchCompare?baseVersion=GC" + from + "&targetVersion=GC" + to + "&_a=files"
	}
	return ""
}

// maxAddress is the length in bytes above which an address is invalid.
const maxAddress = 2048

// Same reports whether two addresses name the same repository, that is, the same host and path. It ignores scheme, user and
// port, because hosts serve one repository over https and ssh at different ports. It also ignores .git, slashes at both ends of
// the path, and case, as most hosts do. The same rules apply to local folders, whose host is empty. An invalid address equals
// nothing. All addresses of a repository on Azure DevOps, whose hosts and paths differ, are the same.
func Same(a, b string) bool {
	hostA, pathA, okA := splitAzure(a)
	hostB, pathB, okB := splitAzure(b)
	return okA && okB && hostA == hostB && strings.EqualFold(pathA, pathB)
}

// splitAzure is split with one host and path for all addresses of a repository on Azure DevOps.
func splitAzure(s string) (host, path string, ok bool) {
	host, path, ok = split(s)
	if parts := AzurePath(host, strings.Split(path, "/")); parts != nil && ProviderOf(s) == AzureDevOps {
		return "dev.azure.com", strings.Join(parts, "/"), ok
	}
	return host, path, ok
}

// AzurePath returns organization/project/_git/name for the host, in lower case, and the path of a repository on Azure DevOps:
// dev.azure.com/organization/[project/]_git/name, organization.visualstudio.com/[DefaultCollection/][project/]_git/name or
// ssh.dev.azure.com:v3/organization/project/name. It returns nil for another path.
func AzurePath(host string, parts []string) []string {
	if organization, older := strings.CutSuffix(host, ".visualstudio.com"); older && organization != "vs-ssh" {
		if strings.EqualFold(parts[0], "DefaultCollection") {
			parts = parts[1:]
		}
		parts = append([]string{organization}, parts...)
	}
	switch {
	case len(parts) == 3 && parts[1] == "_git": // the repository has the name of its project
		return []string{parts[0], parts[2], "_git", parts[2]}
	case len(parts) == 4 && parts[2] == "_git":
		return parts
	case len(parts) == 4 && parts[0] == "v3":
		return []string{parts[1], parts[2], "_git", parts[3]}
	}
	return nil
}

// remoteSchemes are the schemes of repositories on a host.
var remoteSchemes = []string{"https", "http", "ssh", "git+ssh", "ssh+git"}

// split returns the host and path of an address. The host is "" for a folder, which is a path or a file:// URL.
func split(s string) (host, path string, ok bool) {
	s = strings.TrimSpace(s)
	if s == "" || len(s) > maxAddress {
		return "", "", false
	}
	scheme, rest, hasScheme := strings.Cut(s, "://")
	switch {
	case strings.HasPrefix(s, "/"):
		return "", trimmed(s), trimmed(s) != ""
	case !hasScheme:
		return splitSCP(s)
	case strings.EqualFold(scheme, "file"):
		return "", trimmed(rest), strings.HasPrefix(rest, "/") && trimmed(rest) != ""
	case !slices.Contains(remoteSchemes, strings.ToLower(scheme)):
		return "", "", false
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" {
		return "", "", false
	}
	path = trimmed(u.Path)
	return strings.ToLower(u.Hostname()), path, path != ""
}

// splitSCP parses the form [user@]host:path.
func splitSCP(s string) (host, path string, ok bool) {
	if i := strings.LastIndexByte(s[:colon(s)], '@'); i >= 0 {
		s = s[i+1:]
	}
	i := colon(s)
	if i == len(s) || strings.ContainsAny(s[:i], "/ ") {
		return "", "", false
	}
	host, path = strings.ToLower(strings.Trim(s[:i], "[]")), trimmed(s[i+1:])
	return host, path, host != "" && path != ""
}

// colon returns the index of the colon that separates host and path in [user@]host:path, or len(s) if there is none. An IPv6
// host is in brackets.
func colon(s string) int {
	from := strings.IndexByte(s, ']') + 1
	if i := strings.IndexByte(s[from:], ':'); i >= 0 {
		return from + i
	}
	return len(s)
}

func trimmed(path string) string {
	path = strings.Trim(path, "/")
	if cut := len(path) - len(".git"); cut > 0 && strings.EqualFold(path[cut:], ".git") {
		path = strings.TrimRight(path[:cut], "/")
	}
	return path
}
