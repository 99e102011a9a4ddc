package main

import (
	"encoding/json"
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
	"time"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/reconcile"
	"stoker.io/stoker/internal/daemon"
	"stoker.io/stoker/internal/tuning"
)

// settings are the flags and the environment of the injector. docs/reference/injector.md lists them, and a test compares both.
type settings struct {
	daemon.Settings

	AgentImage      string
	PullPolicy      string
	AllowAgentImage daemon.Texts
	AgentResources  string
	AgentEnv        daemon.Texts
	AgentArg        daemon.Texts

	RequireNamespaceLabel bool
	AutoBindAgent         bool
	Repair                string

	CertificateDir string

	WebhookAddr string
	Namespace   string

	// Pod is the name of the injector's own pod, from POD_NAME.
	Pod string

	// RepairDelay is how long a replica must be ready before it evicts pods. The certificate's files are read every MountedInterval, and the
	// webhook configuration every TrustInterval. Tests shorten all three.
	RepairDelay, MountedInterval, TrustInterval time.Duration

	// Parsed values of the above.
	image     v1alpha1.AgentImage
	resources corev1.ResourceRequirements
	agentEnv  []corev1.EnvVar
}

// agentResources are sufficient for the first sync of a large repository; later an agent needs little.
const agentResources = `{"requests":{"cpu":"20m","memory":"64Mi"},"limits":{"memory":"512Mi"}}`

func (s *settings) flags(out io.Writer) *flag.FlagSet {
	f := daemon.Flags("injector", out, "injector adds the Stoker agent to gateway pods.\n\n  injector --agent-image IMAGE [flags]\n  injector check [flags]\n  injector renew [flags]",
		"Environment: POD_NAME, POD_NAMESPACE. Exit codes: 0 done, 1 failed, 2 usage.")
	s.Register(f)
	f.StringVar(&s.AgentImage, "agent-image", "", "the agent's `image`, with a tag or a digest; a GatewaySync may name another version of it")
	f.StringVar(&s.PullPolicy, "agent-image-pull-policy", "", "Always, IfNotPresent or Never; default: the rule of Kubernetes")
	f.Var(&s.AllowAgentImage, "allow-agent-image", "a `prefix` of images that pods (annotation stoker.io/agent-image) and GatewaySyncs (spec.agent.image) may name (repeatable)")
	f.StringVar(&s.AgentResources, "agent-resources", agentResources, "requests and limits of agents, as `JSON`; spec.agent.resources of a GatewaySync overrides them")
	f.Var(&s.AgentEnv, "agent-env", "a proxy variable of agents, `NAME=VALUE`: HTTPS_PROXY, HTTP_PROXY or NO_PROXY (repeatable)")
	f.Var(&s.AgentArg, "agent-arg", "a flag of agents, `--flag=value`: --log-..., --max-... or --lost-found-age (repeatable)")

	f.BoolVar(&s.RequireNamespaceLabel, "require-namespace-label", false, "inject only in namespaces with the label stoker.io/injection=enabled; the webhook configuration must select the same")
	f.BoolVar(&s.AutoBindAgent, "auto-bind-agent", true, "bind the ClusterRole stoker-agent to the ServiceAccounts of gateway pods")
	f.StringVar(&s.Repair, "repair", string(reconcile.RepairEvict), "what happens to pods younger than ten minutes that started without their agent: evict or report")

	f.StringVar(&s.CertificateDir, "certificate-dir", "/etc/stoker/tls", "`directory` with tls.crt and tls.key")

	f.StringVar(&s.WebhookAddr, "webhook-addr", ":9443", "`address` of the webhook")
	f.StringVar(&s.Namespace, "namespace", "", "`namespace` of the injector; default: POD_NAMESPACE")
	return f
}

// parse parses the command line and the environment. It returns the error of daemon.Parse if a flag cannot be parsed,
// and otherwise all problems in one error (daemon.Explain).
func parse(args []string, env func(string) string, out io.Writer) (settings, error) {
	s := settings{RepairDelay: repairDelay, MountedInterval: mountedInterval, TrustInterval: trustInterval}
	f := s.flags(out)
	if err := daemon.Parse(f, args); err != nil || s.Version {
		return s, err
	}
	s.Pod = env("POD_NAME")
	if s.Namespace == "" {
		s.Namespace = env("POD_NAMESPACE")
	}
	err := daemon.Explain(f, append(s.Problems(), s.validate()...)...)
	return s, err
}

func (s *settings) validate() []error {
	errs := []error{
		daemon.OneOf("agent-image-pull-policy", s.PullPolicy, "", "Always", "IfNotPresent", "Never"),
		daemon.OneOf("repair", s.Repair, string(reconcile.RepairEvict), string(reconcile.RepairReport)),
	}
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if s.Namespace == "" {
		bad("set --namespace or POD_NAMESPACE")
	}
	var err error
	if s.image, err = parseImage(s.AgentImage); err != nil {
		bad("--agent-image: %w", err)
	}
	s.image.PullPolicy = corev1.PullPolicy(s.PullPolicy)
	decoder := json.NewDecoder(strings.NewReader(s.AgentResources))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s.resources); err != nil {
		bad("--agent-resources: %w", err)
	} else if problem := inject.ResourcesProblem(s.resources); problem != "" {
		bad("--agent-resources: %s", problem)
	}
	var problems []error
	s.agentEnv, problems = parseAgentEnv(s.AgentEnv)
	return slices.Concat(errs, problems, checkAgentArgs(s.AgentArg))
}

var imageDigest = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)

// parseImage splits a reference at its digest or tag. A colon before the last slash belongs to a port.
func parseImage(reference string) (v1alpha1.AgentImage, error) {
	if reference == "" {
		return v1alpha1.AgentImage{}, errors.New("an image with a tag or a digest is required")
	}
	if repository, digest, ok := strings.Cut(reference, "@"); ok {
		if !imageDigest.MatchString(digest) {
			return v1alpha1.AgentImage{}, fmt.Errorf("%.80q is not a digest: write sha256: and 64 lower-case hex digits", digest)
		}
		if !validation.IsImage(reference) {
			return v1alpha1.AgentImage{}, fmt.Errorf("%.200q is not a valid image before its digest", reference)
		}
		repository, _, _ = cutTag(repository) // the digest takes precedence over a tag
		return v1alpha1.AgentImage{Repository: repository, Digest: digest}, nil
	}
	repository, tag, ok := cutTag(reference)
	if !ok || repository == "" || tag == "" {
		return v1alpha1.AgentImage{}, fmt.Errorf("%q has no tag and no digest: add one, so that every pod gets the same agent", reference)
	}
	if !validation.IsImage(reference) {
		return v1alpha1.AgentImage{}, fmt.Errorf("%.200q is not a valid image: write registry/repository:tag, or registry/repository@digest", reference)
	}
	return v1alpha1.AgentImage{Repository: repository, Tag: tag}, nil
}

func cutTag(reference string) (repository, tag string, ok bool) {
	i := strings.LastIndexByte(reference, ':')
	if i < 0 || strings.Contains(reference[i:], "/") {
		return reference, "", false
	}
	return reference[:i], reference[i+1:], true
}

// proxyVariables are the environment variables that --agent-env may set. All others follow from the pod and its GatewaySync.
var proxyVariables = []string{"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}

// maxVariable bounds a value, which becomes part of every pod, in bytes.
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
