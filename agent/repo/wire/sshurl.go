package wire

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strings"
)

const (
	sshPort        = "22"
	defaultSSHUser = "git" // if the address has no user
	maxSSHUser     = 64    // bytes
)

// parseSSH reads ssh://user@host:port/path. As in git, a path that starts with ~ is relative to a home directory.
func parseSSH(s string) (URL, error) {
	p, err := parseAddress(s)
	if err != nil {
		return URL{}, err
	}
	u := URL{scheme: "ssh", host: canonicalHost("ssh", p), path: strings.TrimRight(p.Path, "/")}
	if strings.HasPrefix(u.path, "/~") {
		u.path = u.path[1:]
	}
	if u.path == "" {
		return URL{}, badURL("it names no repository: add a path after the host")
	}
	if p.User == nil {
		return u, nil
	}
	if _, ok := p.User.Password(); ok {
		return URL{}, badURL("it contains a password, which ssh does not use: set a private key in git.auth.sshKey, and treat the password as compromised")
	}
	return u.withUser(p.User.Username())
}

// parseSCP reads the form user@host:path. For other text without a scheme, it returns an error that says what is wrong.
func parseSCP(s string) (URL, error) {
	if strings.Contains(s, "::") && !strings.Contains(s, "[") {
		return URL{}, badURL("remote helpers (name::address) are never run: use https:// or an absolute directory")
	}
	user, rest, hasUser := strings.Cut(s, "@")
	if !hasUser {
		user, rest = "", s
	}
	host, path, ok := strings.Cut(rest, ":")
	if strings.HasPrefix(rest, "[") {
		host, path, ok = strings.Cut(rest[1:], "]:")
	}
	switch {
	case !ok || strings.Contains(host, "/"):
		return URL{}, badURL("it is neither https:// nor ssh:// nor user@host:path nor the absolute path of a directory (relative paths are not supported)")
	case slices.Contains([]string{"https", "http", "ssh", "file", "git", "ftp"}, strings.ToLower(host)):
		return URL{}, badURL("two slashes are missing after the colon")
	case !validHost(host):
		return URL{}, badURL("its host is not a host name")
	case path == "" || strings.HasPrefix(path, "-") || strings.HasPrefix(path, ":") || strings.Trim(path, "/") == "":
		return URL{}, badURL("what follows the colon is not the path of a repository")
	case strings.Contains(path, "@"): // a user could not see which @ ends the user name
		return URL{}, badURL("its path has an @: write it as ssh://user@host/path")
	}
	u := URL{scheme: "ssh", host: bracketIPv6(strings.ToLower(host)), path: strings.TrimRight(path, "/")}
	if strings.HasPrefix(u.path, "/~") {
		u.path = u.path[1:]
	}
	if !hasUser {
		return u, nil
	}
	return u.withUser(user)
}

// withUser returns u with a user. It refuses names that a shell or an option parser could misread.
func (u URL) withUser(name string) (URL, error) {
	ok := name != "" && len(name) <= maxSSHUser && name[0] != '-' && name[0] != '.'
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_.+~", c) >= 0:
		default:
			ok = false
		}
	}
	if !ok {
		return URL{}, badURL("its user name is not valid: use at most %d letters, digits and -_.+~, and begin with neither - nor .", maxSSHUser)
	}
	u.setLogin(name, "")
	return u, nil
}

// sshLogin returns the user of an ssh address, or defaultSSHUser if the address names no user.
func (u URL) sshLogin() string {
	if name, _ := u.credentials(); name != "" {
		return name
	}
	return defaultSSHUser
}

// dialAddress returns the host and the port of an ssh address.
func (u URL) dialAddress() string {
	h := url.URL{Host: u.host}
	return net.JoinHostPort(h.Hostname(), cmp.Or(h.Port(), sshPort))
}

// command returns the command line that starts a service. It quotes the path for a shell: within single quotes, only the quote is
// special, and ! for csh.
func (u URL) command(s service) string {
	return s.String() + " '" + strings.NewReplacer("'", `'\''`, "!", `'\!'`).Replace(u.path) + "'"
}
