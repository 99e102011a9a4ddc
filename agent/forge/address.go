package forge

import (
	"net/url"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
)

// address is where a forge has a repository.
type address struct {
	api         *url.URL // base of the API
	owner, name string   // of the repository; GitLab's owner may have slashes
	project     string   // of Azure DevOps
}

// hosts are the public forges.
var hosts = map[string]string{
	"github.com": GitHub, "gitlab.com": GitLab, "bitbucket.org": Bitbucket, "codeberg.org": Gitea, "gitea.com": Gitea,
	"dev.azure.com": AzureDevOps, "ssh.dev.azure.com": AzureDevOps,
}

// ProviderOf returns the provider of a repository by its host, or "" if the host does not tell.
func ProviderOf(repository string) string {
	u, err := parse(repository)
	if err != nil {
		return ""
	}
	host := strings.ToLower(u.Hostname())
	switch {
	case hosts[host] != "":
		return hosts[host]
	case strings.HasSuffix(host, ".ghe.com"):
		return GitHub
	case strings.HasSuffix(host, ".visualstudio.com"):
		return AzureDevOps
	}
	return ""
}

// parse reads the address of a repository: a URL, or the form user@host:path.
func parse(repository string) (*url.URL, error) {
	if !strings.Contains(repository, "://") {
		host, path, ok := strings.Cut(repository, ":")
		if !ok || strings.Contains(host, "/") {
			return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "the repository is on no forge: give an https:// or ssh:// address")
		}
		repository = "ssh://" + host + "/" + strings.TrimPrefix(path, "/")
	}
	u, err := url.Parse(repository)
	if err != nil || u.Hostname() == "" {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "the repository is on no forge: give an https:// or ssh:// address") // err may repeat a password
	}
	return u, nil
}

// locate finds the repository and the API.
func locate(provider, repository, base string) (address, error) {
	u, err := parse(repository)
	if err != nil {
		return address{}, err
	}
	at := address{}
	parts := strings.Split(strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git"), "/")
	web := &url.URL{Scheme: "https", Host: u.Hostname()}
	if u.Scheme == "https" || u.Scheme == "http" {
		web.Scheme, web.Host = u.Scheme, u.Host
	}
	if provider == AzureDevOps {
		return azureAddress(at, u, parts, base)
	}
	if len(parts) < 2 || provider != GitLab && len(parts) != 2 {
		return at, failure.New(v1alpha1.ReasonUnsupportedRepository, "the path of the repository is not owner/name, as %s has it", provider)
	}
	at.owner, at.name = strings.Join(parts[:len(parts)-1], "/"), parts[len(parts)-1]
	if base == "" {
		base = defaultAPI(provider, web)
	}
	at.api, err = parseBase(base, web.Scheme)
	return at, err
}

func defaultAPI(provider string, web *url.URL) string {
	switch host := strings.ToLower(web.Hostname()); {
	case provider == GitHub && (host == "github.com" || host == "www.github.com"):
		return "https://api.github.com"
	case provider == GitHub && strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	case provider == GitHub:
		return web.String() + "/api/v3"
	case provider == GitLab:
		return web.String() + "/api/v4"
	case provider == Bitbucket:
		return "https://api.bitbucket.org/2.0"
	}
	return web.String()
}

// azureAddress reads https://dev.azure.com/org/project/_git/name, https://org.visualstudio.com/project/_git/name and
// git@ssh.dev.azure.com:v3/org/project/name.
func azureAddress(at address, u *url.URL, parts []string, base string) (address, error) {
	host := strings.ToLower(u.Hostname())
	org, vs := strings.CutSuffix(host, ".visualstudio.com")
	switch {
	case vs && len(parts) == 3 && parts[1] == "_git":
		at.owner, at.project, at.name = org, parts[0], parts[2]
	case len(parts) == 4 && parts[2] == "_git":
		at.owner, at.project, at.name = parts[0], parts[1], parts[3]
	case len(parts) == 4 && parts[0] == "v3":
		at.owner, at.project, at.name = parts[1], parts[2], parts[3]
	default:
		return at, failure.New(v1alpha1.ReasonUnsupportedRepository, "the path of the repository is not organization/project/_git/name, as azuredevops has it")
	}
	if base == "" {
		base = "https://dev.azure.com/" + url.PathEscape(at.owner)
	}
	var err error
	at.api, err = parseBase(base, u.Scheme)
	return at, err
}

// parseBase reads the base of an API. A token is sent in the clear only if the repository's address is http://, too.
func parseBase(base, scheme string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(base, "/"))
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "spec.bidirectional.apiBaseURL is no address of an API: give https://host/path, without credentials or query")
	}
	if u.Scheme != "https" && (u.Scheme != "http" || scheme != "http") {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "spec.bidirectional.apiBaseURL is not https://, and a token is not sent in the clear")
	}
	return u, nil
}

// shownURL returns the address of a pull request if it is one that can be shown, or "".
func shownURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || len(s) > 512 || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(s, "<>\"'` ()") {
		return ""
	}
	return s
}
