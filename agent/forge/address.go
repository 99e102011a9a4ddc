package forge

import (
	"cmp"
	"net/url"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
)

// address locates a repository on a forge.
type address struct {
	api         *url.URL // base of the API
	owner, name string   // of the repository; GitLab's owner may have slashes
	project     string   // of Azure DevOps
}

// parseRepository reads the address of a repository: a URL, or the form user@host:path.
func parseRepository(repository string) (*url.URL, error) {
	if host, path, ok := strings.Cut(repository, ":"); ok && !strings.Contains(host, "/") && !strings.HasPrefix(path, "//") {
		repository = "ssh://" + host + "/" + strings.TrimPrefix(path, "/")
	}
	u, err := url.Parse(repository)
	if err != nil || u.Hostname() == "" {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "the repository is not on a forge: use an https:// or ssh:// address") // err may repeat a password
	}
	return u, nil
}

// locate returns the address of a repository. base is the address of the API, "" for the one that the provider uses for the host.
func locate(provider, repository, base string) (address, error) {
	u, err := parseRepository(repository)
	if err != nil {
		return address{}, err
	}
	parts := strings.Split(strings.TrimSuffix(strings.Trim(u.Path, "/"), ".git"), "/")
	web := &url.URL{Scheme: "https", Host: giturl.PageHost(u.Hostname())}
	if u.Scheme == "https" || u.Scheme == "http" {
		web.Scheme, web.Host = u.Scheme, u.Host
	}
	if provider == giturl.AzureDevOps {
		return azureAddress(u, parts, base)
	}
	if len(parts) < 2 || provider != giturl.GitLab && len(parts) != 2 {
		return address{}, failure.New(v1alpha1.ReasonUnsupportedRepository, "the path of a repository on %s must be owner/name", provider)
	}
	last := len(parts) - 1
	api, err := parseBase(cmp.Or(base, defaultAPI(provider, web)), web.Scheme)
	return address{api: api, owner: strings.Join(parts[:last], "/"), name: parts[last]}, err
}

// defaultAPI returns the address of the API that a provider uses for its web address.
func defaultAPI(provider string, web *url.URL) string {
	switch host := strings.ToLower(web.Hostname()); {
	case provider == giturl.GitHub && (host == "github.com" || host == "www.github.com"):
		return "https://api.github.com"
	case provider == giturl.GitHub && strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	case provider == giturl.GitHub:
		return web.String() + "/api/v3"
	case provider == giturl.GitLab:
		return web.String() + "/api/v4"
	case provider == giturl.Bitbucket:
		return "https://api.bitbucket.org/2.0"
	}
	return web.String()
}

// azureAddress reads the forms of giturl.AzurePath, with base also on another host.
func azureAddress(u *url.URL, parts []string, base string) (address, error) {
	if base == "" && giturl.ProviderOf(u.String()) != giturl.AzureDevOps { // dev.azure.com must not get the token of another host
		return address{}, failure.New(v1alpha1.ReasonUnsupportedRepository, "%s is not a host of Azure DevOps Services: set spec.bidirectional.apiBaseURL", u.Hostname())
	}
	path := giturl.AzurePath(strings.ToLower(u.Hostname()), parts)
	if path == nil {
		return address{}, failure.New(v1alpha1.ReasonUnsupportedRepository, "the path of a repository on azuredevops must be organization/project/_git/name")
	}
	api, err := parseBase(cmp.Or(base, "https://dev.azure.com/"+url.PathEscape(path[0])), u.Scheme)
	return address{api: api, owner: path[0], project: path[1], name: path[3]}, err
}

// parseBase reads the address of an API. It accepts http:// only if the scheme of the repository is http, too, because the token
// is sent in the clear.
func parseBase(base, scheme string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimRight(base, "/"))
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "spec.bidirectional.apiBaseURL is not a valid API address: use https://host/path, without credentials or query")
	}
	if u.Scheme != "https" && (u.Scheme != "http" || scheme != "http") {
		return nil, failure.New(v1alpha1.ReasonUnsupportedRepository, "spec.bidirectional.apiBaseURL is not https://: the token would be sent in the clear")
	}
	return u, nil
}

// shownURL returns the address of a pull request if it is safe to show, else "".
func shownURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || len(s) > 512 || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" || strings.ContainsAny(s, "<>\"'` ()") {
		return ""
	}
	return s
}
