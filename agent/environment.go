package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"stoker.io/stoker/api/v1alpha1/gatewaypod"
)

// environment is the configuration of a sidecar, written by the injector. A test compares the variables with docs/reference/agent.md.
type environment struct {
	PodName, PodNamespace, PodUID string
	GatewaySync, Gateway, Profile string
	RepoPath, DataPath            string
	Port                          int32
	TLS                           bool
	Period                        time.Duration
	SecretsDir, PodInfoDir        string
	KeyDir                        string
	Mounts                        []string
	Secrets                       map[string]bool // by NAME/KEY
}

// variable is one environment variable.
type variable struct {
	name     string
	required bool
	parse    func(value string) error // sets the field of the environment
}

func (e *environment) variables() []variable {
	text := func(into *string) func(string) error {
		return func(v string) error { *into = v; return nil }
	}
	object := func(into *string, maxBytes int) func(string) error {
		return func(v string) error {
			if len(v) > maxBytes || !objectName.MatchString(v) {
				return errors.New("is not a name of an object in Kubernetes")
			}
			*into = v
			return nil
		}
	}
	return []variable{
		{"POD_NAME", true, object(&e.PodName, 253)},
		{"POD_NAMESPACE", true, object(&e.PodNamespace, 63)},
		{"POD_UID", true, text(&e.PodUID)},
		{"CR_NAME", true, object(&e.GatewaySync, 48)},
		{"GATEWAY_NAME", true, func(v string) error {
			if !gatewaypod.ValidName(v) {
				return errors.New("is not the name of a gateway: use at most 253 letters, digits, '.', '_' and '-', a letter or digit first and last")
			}
			e.Gateway = v
			return nil
		}},
		{"PROFILE", false, text(&e.Profile)},
		{"REPO_PATH", false, text(&e.RepoPath)},
		{"DATA_PATH", true, text(&e.DataPath)},
		{"GATEWAY_PORT", false, func(v string) error {
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil || n < 1 || n > 65535 {
				return errors.New("is not a port")
			}
			e.Port = int32(n)
			return nil
		}},
		{"GATEWAY_TLS", false, func(v string) (err error) {
			if e.TLS, err = strconv.ParseBool(v); err != nil {
				return errors.New("is neither true nor false")
			}
			return nil
		}},
		{"SYNC_PERIOD", false, func(v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 5 || n > 3600 {
				return errors.New("is not a number of seconds from 5 to 3600")
			}
			e.Period = time.Duration(n) * time.Second
			return nil
		}},
		{"SECRETS_DIR", false, text(&e.SecretsDir)},
		{"SECRETS", false, func(v string) error {
			e.Secrets = map[string]bool{}
			for id := range strings.SplitSeq(v, ",") {
				if !secretKey.MatchString(id) {
					return errors.New("is not a list of NAME/KEY, with commas between them")
				}
				e.Secrets[id] = true
			}
			return nil
		}},
		{"KEY_DIR", false, text(&e.KeyDir)},
		{"PODINFO_DIR", false, text(&e.PodInfoDir)},
		{"GATEWAY_MOUNTS", false, func(v string) error {
			if json.Unmarshal([]byte(v), &e.Mounts) != nil {
				return errors.New("is not a list of paths in JSON")
			}
			return nil
		}},
	}
}

// secretKey matches NAME/KEY: a key of a Secret, or of a ConfigMap as secretrefs.Field.Folder names it.
var secretKey = regexp.MustCompile(`^(configmap_)?[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[-._a-zA-Z0-9]+$`)

var objectName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$`)

const defaultRepoPath = "/repo"

// read parses env, lines of NAME=value. An empty value counts as unset.
func (e *environment) read(env []string) error {
	values := map[string]string{}
	for _, line := range env {
		if name, value, ok := strings.Cut(line, "="); ok {
			values[name] = value
		}
	}
	e.RepoPath = defaultRepoPath
	var errs []error
	for _, v := range e.variables() {
		value := values[v.name]
		switch {
		case value == "" && v.required:
			errs = append(errs, fmt.Errorf("%s is required", v.name))
		case value != "":
			if err := v.parse(value); err != nil {
				errs = append(errs, fmt.Errorf("%s: %.80q %w", v.name, value, err))
			}
		}
	}
	return errors.Join(errs...)
}

// isSidecar reports whether env is that of a sidecar.
func isSidecar(env []string) bool {
	return slices.ContainsFunc(env, func(line string) bool {
		value, ok := strings.CutPrefix(line, "POD_NAME=")
		return ok && value != ""
	})
}
