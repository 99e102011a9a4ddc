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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/injector/admission"
	"stoker.io/stoker/injector/inject"
	"stoker.io/stoker/injector/upkeep"
)

// settings is everything that the injector is told from outside; docs/injector.md lists the same, and a test compares them.
type settings struct {
	AgentImage      string
	PullPolicy      string
	AllowAgentImage texts
	AgentResources  string

	WatchNamespace        texts
	WatchLabelSelector    string
	RequireNamespaceLabel bool
	AutoBindAgent         bool
	Repair                string

	Certificates      string
	CertificateDir    string
	CertificateSecret string
	CertificateHost   texts
	Configuration     string

	WebhookAddr string
	HealthAddr  string
	MetricsAddr string
	LogFormat   string
	LogLevel    string
	Kubeconfig  string
	Namespace   string
	Version     bool

	// Pod is the injector's own, from POD_NAME.
	Pod string

	// What follows from the above.
	image     v1alpha1.AgentImage
	resources corev1.ResourceRequirements
	selector  labels.Selector
}

// Who gives the webhook its certificate.
const (
	certificatesOwn     = "own"
	certificatesMounted = "mounted"
)

// agentResources leave an agent room for the first sync of a large repository; it needs little of it later.
const agentResources = `{"requests":{"cpu":"20m","memory":"64Mi"},"limits":{"memory":"512Mi"}}`

func (s *settings) flags(out io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("injector", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&s.AgentImage, "agent-image", "", "the agent's `image`, with a tag or a digest; a GatewaySync may name another")
	f.StringVar(&s.PullPolicy, "agent-image-pull-policy", "", "Always, IfNotPresent or Never; else Kubernetes' own rule")
	f.Var(&s.AllowAgentImage, "allow-agent-image", "a `prefix` of images that pods may ask for with the annotation stoker.io/agent-image (repeatable); without any the annotation is ignored")
	f.StringVar(&s.AgentResources, "agent-resources", agentResources, "requests and limits of agents, as `JSON`; a GatewaySync may name others")

	f.Var(&s.WatchNamespace, "watch-namespace", "a `namespace` to serve (repeatable); without any, all of them")
	f.StringVar(&s.WatchLabelSelector, "watch-label-selector", "", "serve only GatewaySyncs that this label `selector` admits")
	f.BoolVar(&s.RequireNamespaceLabel, "require-namespace-label", false, "inject only in namespaces with the label stoker.io/injection=enabled, as the webhook configuration says too")
	f.BoolVar(&s.AutoBindAgent, "auto-bind-agent", true, "bind the ClusterRole stoker-agent to the ServiceAccounts of gateway pods")
	f.StringVar(&s.Repair, "repair", string(upkeep.RepairEvict), "what happens to pods younger than ten minutes that started without their agent: evict or report")

	f.StringVar(&s.Certificates, "certificates", certificatesOwn, "own: the injector makes and renews its certificate; mounted: somebody else puts it into --certificate-dir")
	f.StringVar(&s.CertificateDir, "certificate-dir", "/etc/stoker/tls", "`directory` with tls.crt and tls.key, with --certificates=mounted")
	f.StringVar(&s.CertificateSecret, "certificate-secret", "stoker-injector-cert", "`Secret` by which replicas share the own certificate")
	f.Var(&s.CertificateHost, "certificate-host", "a further `name` or address that the own certificate is for (repeatable)")
	f.StringVar(&s.Configuration, "webhook-configuration", admission.ConfigurationName, "`name` of the MutatingWebhookConfiguration that trusts the own certificate")

	f.StringVar(&s.WebhookAddr, "webhook-addr", ":9443", "`address` of the webhook")
	f.StringVar(&s.HealthAddr, "health-addr", ":8082", "`address` of /healthz and /readyz")
	f.StringVar(&s.MetricsAddr, "metrics-addr", ":8083", "`address` of /metrics")
	f.StringVar(&s.LogFormat, "log-format", "json", "json or text")
	f.StringVar(&s.LogLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&s.Kubeconfig, "kubeconfig", "", "how to reach the API server, a `file`; else the pod's own service account")
	f.StringVar(&s.Namespace, "namespace", "", "the injector's own `namespace`; else POD_NAMESPACE")
	f.BoolVar(&s.Version, "version", false, "print the version and exit")
	f.Usage = func() {
		fmt.Fprint(out, "injector puts the Stoker agent into gateway pods.\n\n  injector --agent-image IMAGE [flags]\n\nFlags:\n")
		f.PrintDefaults()
		fmt.Fprint(out, "\nEnvironment: POD_NAME, POD_NAMESPACE. Exit codes: 0 done, 1 failed, 2 usage.\n")
	}
	return f
}

// errUsage marks a command line that cannot be run; it was explained already.
var errUsage = errors.New("usage")

// parse reads the command line and the environment. The error of a bad one wraps errUsage, that of --help is flag.ErrHelp.
func parse(args []string, env func(string) string, out io.Writer) (settings, error) {
	var s settings
	f := s.flags(out)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return s, err
		}
		return s, fmt.Errorf("%w: %w", errUsage, err)
	}
	if s.Version {
		return s, nil
	}
	s.Pod = env("POD_NAME")
	if s.Namespace == "" {
		s.Namespace = env("POD_NAMESPACE")
	}
	if err := errors.Join(s.validate(f)...); err != nil {
		fmt.Fprintf(out, "%s\nSee injector --help.\n", err)
		return s, fmt.Errorf("%w: %w", errUsage, err)
	}
	return s, nil
}

func (s *settings) validate(f *flag.FlagSet) []error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if f.NArg() > 0 {
		bad("unexpected argument %q", f.Arg(0))
	}
	for _, c := range []struct {
		name, value string
		of          []string
	}{
		{"agent-image-pull-policy", s.PullPolicy, []string{"", "Always", "IfNotPresent", "Never"}},
		{"repair", s.Repair, []string{string(upkeep.RepairEvict), string(upkeep.RepairReport)}},
		{"certificates", s.Certificates, []string{certificatesOwn, certificatesMounted}},
		{"log-format", s.LogFormat, []string{"json", "text"}},
		{"log-level", s.LogLevel, []string{"debug", "info", "warn", "error"}},
	} {
		if !slices.Contains(c.of, c.value) {
			bad("--%s: %q is none of %s", c.name, c.value, strings.Trim(strings.Join(c.of, ", "), ", "))
		}
	}
	if s.Namespace == "" {
		bad("--namespace is required, or POD_NAMESPACE")
	}
	for _, ns := range s.WatchNamespace {
		if len(validation.IsDNS1123Label(ns)) > 0 {
			bad("--watch-namespace: %q is no name of a namespace", ns)
		}
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
	if s.selector, err = labels.Parse(s.WatchLabelSelector); err != nil {
		bad("--watch-label-selector: %w", err)
	}
	return errs
}

var imageDigest = regexp.MustCompile(`^sha256:[a-f0-9]{64}$`)

// parseImage splits a reference at its digest or tag. A colon before the last slash is that of a port.
func parseImage(reference string) (v1alpha1.AgentImage, error) {
	if reference == "" {
		return v1alpha1.AgentImage{}, errors.New("an image with a tag or a digest is required")
	}
	if repository, digest, ok := strings.Cut(reference, "@"); ok {
		if !imageDigest.MatchString(digest) {
			return v1alpha1.AgentImage{}, fmt.Errorf("%.80q is no digest: write sha256: and 64 lower-case hex digits", digest)
		}
		repository, _, _ = cutTag(repository) // a digest says all that a tag could
		return v1alpha1.AgentImage{Repository: repository, Digest: digest}, nil
	}
	repository, tag, ok := cutTag(reference)
	if !ok || repository == "" || tag == "" {
		return v1alpha1.AgentImage{}, fmt.Errorf("%q has no tag and no digest: which agent runs would depend on the day", reference)
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

// texts is a repeatable flag.
type texts []string

func (t *texts) String() string { return "" }

func (t *texts) Set(v string) error {
	if v == "" {
		return errors.New("it is empty")
	}
	*t = append(*t, v)
	return nil
}
