package sender

import (
	"net/url"
	"strings"

	"stoker.io/stoker/internal/giturl"
)

// Repository identifies a repository in a delivery: by an address or, if the host sends no address, by the last two elements of the
// repository's path.
type Repository struct {
	Address string
	// Path, such as PLANT/site, is used if there is no address.
	Path string
}

// Is reports whether r is the repository with the address repo (spec.git.repo), whatever form the two addresses have.
func (r Repository) Is(repo string) bool {
	if r.Address != "" {
		return giturl.Same(normalizeAzure(r.Address), normalizeAzure(repo))
	}
	want := strings.FieldsFunc(strings.TrimSuffix(strings.TrimRight(repo, "/"), ".git"), func(c rune) bool { return c == '/' || c == ':' })
	have := strings.Split(strings.Trim(r.Path, "/"), "/")
	n := len(want)
	return len(have) == 2 && n > 2 && have[0] != "" && strings.EqualFold(want[n-2], have[0]) && strings.EqualFold(want[n-1], have[1])
}

// normalizeAzure normalizes the addresses of Azure DevOps to organisation/project/_git/repository. They differ between ssh and https,
// and between the current host and the older one. It returns other addresses unchanged.
func normalizeAzure(s string) string {
	host, path := "", ""
	if u, err := url.Parse(s); err == nil && u.Host != "" {
		host, path = u.Hostname(), u.Path
	} else if _, rest, ok := strings.Cut(s, "@"); ok {
		host, path, _ = strings.Cut(rest, ":")
	}
	host = strings.ToLower(host)
	parts := strings.Split(strings.Trim(path, "/"), "/")
	organisation, older := strings.CutSuffix(host, ".visualstudio.com")
	switch {
	case (host == "ssh.dev.azure.com" || host == "vs-ssh.visualstudio.com") && len(parts) == 4 && parts[0] == "v3":
		parts = []string{parts[1], parts[2], "_git", parts[3]}
	case older && host != "vs-ssh.visualstudio.com":
		if strings.EqualFold(parts[0], "DefaultCollection") {
			parts = parts[1:]
		}
		parts = append([]string{organisation}, parts...)
	case host != "dev.azure.com":
		return s
	}
	if len(parts) == 3 && parts[1] == "_git" { // the repository has the name of its project
		parts = []string{parts[0], parts[2], "_git", parts[2]}
	}
	return (&url.URL{Scheme: "https", Host: "dev.azure.com", Path: "/" + strings.Join(parts, "/")}).String()
}

// addresses returns the non-empty addresses as repositories.
func addresses(list ...string) []Repository {
	var all []Repository
	for _, a := range list {
		if a != "" {
			all = append(all, Repository{Address: a})
		}
	}
	return all
}
