package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/reconcile"
	"stoker.io/stoker/internal/daemon"
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

	// RepairDelay is how long a replica must be ready before it evicts pods. The intervals are those of the certificate. Tests shorten all.
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
