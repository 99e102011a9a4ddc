package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/internal/tuning"
)

// proxyVariables are the environment variables that --agent-env may set. All others follow from the pod and its GatewaySync.
var proxyVariables = []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}

// maxVariable bounds a value, which becomes part of every pod.
const maxVariable = 4096

// parseAgentEnv parses --agent-env. The errors never quote a value, which may be a misplaced secret.
func parseAgentEnv(given []string) (env []corev1.EnvVar, errs []error) {
	seen := map[string]bool{}
	for _, text := range given {
		name, value, ok := strings.Cut(text, "=")
		variable := strings.ToUpper(name)
		switch {
		case !ok:
			errs = append(errs, errors.New("--agent-env: write NAME=VALUE"))
			continue
		case !slices.Contains(proxyVariables, variable) || name != variable && name != strings.ToLower(variable):
			errs = append(errs, fmt.Errorf("--agent-env: %.60q is not allowed: set %s, or the same in lower case", name, strings.Join(proxyVariables, ", ")))
			continue
		case seen[variable]:
			errs = append(errs, fmt.Errorf("--agent-env: %s is set twice", variable))
			continue
		}
		seen[variable] = true
		check := proxyProblem
		if variable == "NO_PROXY" {
			check = noProxyProblem
		}
		if problem := check(value); problem != "" {
			errs = append(errs, fmt.Errorf("--agent-env: %s %s", name, problem))
			continue
		}
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	return env, errs
}

var (
	hostAndPort = regexp.MustCompile(`^[-._A-Za-z0-9]+(:[0-9]+)?$|^\[[0-9A-Fa-f:.]+\](:[0-9]+)?$`)
	// noProxyEntry matches a host, a domain with or without a leading dot or "*.", or an address, each with an optional port.
	noProxyEntry = regexp.MustCompile(`^(\*\.|\.)?[-_A-Za-z0-9][-._A-Za-z0-9]*(:[0-9]+)?$|^\[[0-9A-Fa-f:.]+\](:[0-9]+)?$`)
)

// proxyProblem returns why a value is not a proxy address that pods may contain, or "".
func proxyProblem(value string) string {
	address := value
	if !strings.Contains(value, "://") {
		address = "http://" + value
	}
	u, err := url.Parse(address)
	switch {
	case strings.Contains(value, "@"):
		return "contains a user or a password, which every reader of a pod could see: use a proxy that admits pods by address"
	case len(value) > maxVariable || err != nil || !hostAndPort.MatchString(u.Host) || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return "is not the address of a proxy, such as http://proxy.example.com:3128"
	case !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme):
		return "has an unsupported scheme: use http, https, socks5 or socks5h"
	}
	if _, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && err != nil {
		return "has an invalid port"
	}
	return ""
}

// noProxyProblem returns why a value is not a valid NO_PROXY list, or "". An entry of another form would silently match
// nothing.
func noProxyProblem(value string) string {
	if value == "" || len(value) > maxVariable {
		return fmt.Sprintf("is empty, or longer than %d bytes", maxVariable)
	}
	for i, entry := range strings.Split(value, ",") {
		entry = strings.TrimSpace(entry)
		_, _, cidrErr := net.ParseCIDR(entry)
		if entry != "" && entry != "*" && cidrErr != nil && net.ParseIP(entry) == nil && !noProxyEntry.MatchString(entry) {
			return fmt.Sprintf("has an invalid entry, number %d: write hosts, domains (example.com, .example.com), addresses and networks (10.0.0.0/8), with commas between them", i+1)
		}
	}
	return ""
}

// checkAgentArgs checks --agent-arg: only flags of package tuning, each once and with a valid value.
func checkAgentArgs(given []string) (errs []error) {
	var s tuning.Settings
	known := flag.NewFlagSet("agent", flag.ContinueOnError)
	known.SetOutput(io.Discard)
	s.Register(known)
	var names []string
	known.VisitAll(func(f *flag.Flag) { names = append(names, "--"+f.Name) })
	seen := map[string]bool{}
	for _, text := range given {
		dashed, value, ok := strings.Cut(text, "=")
		name, isFlag := strings.CutPrefix(dashed, "--")
		switch {
		case !ok || !isFlag:
			errs = append(errs, fmt.Errorf("--agent-arg: %.60q is not of the form --flag=value", dashed))
		case known.Lookup(name) == nil:
			errs = append(errs, fmt.Errorf("--agent-arg: %.60s cannot be set for all agents; the allowed flags are %s",
				dashed, strings.Join(names, ", ")))
		case seen[name]:
			errs = append(errs, fmt.Errorf("--agent-arg: %s is set twice", dashed))
		default:
			seen[name] = true
			if err := known.Set(name, value); err != nil {
				errs = append(errs, fmt.Errorf("--agent-arg: %s=%.60s: %w", dashed, value, err))
			}
		}
	}
	for _, err := range s.Problems(known) {
		errs = append(errs, fmt.Errorf("--agent-arg: %w", err))
	}
	return errs
}
