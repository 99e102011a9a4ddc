package main

import (
	"errors"
	"flag"
	"io"

	"stoker.io/stoker/internal/daemon"
)

// settings are the flags and the environment of the receiver. docs/reference/receiver.md lists them, and a test compares both.
type settings struct {
	daemon.Settings

	WebhookAddr       string
	TLSDir            string
	InstallSecretFile daemon.Texts

	// Namespace is the receiver's own, from POD_NAMESPACE.
	Namespace string
}

func (s *settings) flags(out io.Writer) *flag.FlagSet {
	f := daemon.Flags("receiver", out, "receiver turns HTTP calls of git hosts, Argo CD, Kargo and scripts into requests to GatewaySyncs and ConfigSyncs.\n\n  receiver [flags]\n  receiver check --url URL",
		"Environment: POD_NAMESPACE. Exit codes: 0 done, 1 failed, 2 usage.")
	s.Register(f)
	f.StringVar(&s.WebhookAddr, "webhook-addr", ":9444", "`address` of /webhook and /status")
	f.StringVar(&s.TLSDir, "tls-dir", "", "`directory` with tls.crt and tls.key, read again when they change; without it plain HTTP is served")
	f.Var(&s.InstallSecretFile, "install-secret-file", "a `file` with a secret for hints to all GatewaySyncs and ConfigSyncs, one value per line, read again when it changes (repeatable)")
	return f
}

// parse parses the command line and the environment. The errors are those of daemon.Parse and daemon.Explain.
func parse(args []string, env func(string) string, out io.Writer) (settings, error) {
	var s settings
	f := s.flags(out)
	if err := daemon.Parse(f, args); err != nil || s.Version {
		return s, err
	}
	problems := s.Problems()
	if s.Namespace = env("POD_NAMESPACE"); s.Namespace == "" {
		problems = append(problems, errors.New("POD_NAMESPACE is required: the receiver's own namespace"))
	}
	err := daemon.Explain(f, problems...)
	return s, err
}
