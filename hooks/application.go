package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/hooks/application"
	"stoker.io/stoker/hooks/exit"
)

// applicationFlags are the flags by which a hook Job of Argo CD takes its commit from the sync that created it.
type applicationFlags struct {
	c                      *cli
	application, source    string
	instanceLabel, podInfo string
	timeout                time.Duration
}

// autoApplication is the value of --application that makes the command find the Application of its Job.
const autoApplication = "auto"

func (c *cli) addApplicationFlags(command *cobra.Command) *applicationFlags {
	s := &applicationFlags{c: c}
	f := command.Flags()
	f.StringVar(&s.application, "application", "", "use the commit that this Argo CD Application is syncing: NAMESPACE/NAME, NAME in the namespace argocd, or auto to detect it")
	f.StringVar(&s.source, "source", "", "source of an Application with several: its position from 1, or its address (default: the source that is spec.git.repo)")
	f.StringVar(&s.instanceLabel, "instance-label", application.InstanceLabel, "with --application auto: label that Argo CD sets on its objects")
	f.StringVar(&s.podInfo, "pod-info", "/etc/podinfo", "with --application auto: directory where the pod's annotations and labels are mounted")
	f.DurationVar(&s.timeout, "application-timeout", 2*time.Minute, "maximum time to wait until the Application reports what it is syncing")
	return s
}

// used reports whether the ref comes from a sync.
func (s *applicationFlags) used() bool { return s.application != "" }

// job returns the Job that this process runs in.
func (s *applicationFlags) job(p target) application.Job {
	j := application.Job{Namespace: s.c.env("POD_NAMESPACE"), Name: s.c.env("JOB_NAME")}
	if j.Namespace == "" {
		j.Namespace = p.namespace
	}
	if j.Name == "" {
		j.Name = application.JobOfPod(s.c.env("POD_NAME"))
	}
	return j
}

// findSync returns the running sync and the Job of this process. It fails if the commit of the sync is not from the repository of
// the GatewaySync or ConfigSync that q describes.
func (s *applicationFlags) findSync(ctx context.Context, p target, q desiredref.Inputs) (application.Sync, application.Job, error) {
	job := s.job(p)
	if job.Name == "" {
		return application.Sync{}, job, exit.Errorf(exit.Usage, "--application needs the name of the Job: set the environment variable JOB_NAME from the pod's label batch.kubernetes.io/job-name")
	}
	if q.NotRequestable != "" {
		return application.Sync{}, job, exit.Errorf(exit.Usage, "%s", q.NotRequestable)
	}
	if s.timeout <= 0 {
		return application.Sync{}, job, exit.Errorf(exit.Usage, "--application-timeout must be positive")
	}
	name, err := s.applicationName(ctx, p, job)
	if err != nil {
		return application.Sync{}, job, err
	}
	sync, err := application.WaitForSync(ctx, p.Dynamic, application.SyncQuery{
		Application: name, Job: job, Repo: q.Repo, Source: s.source, Timeout: s.timeout,
	})
	switch {
	case errors.Is(err, application.ErrOvertaken):
		err = exit.With(exit.Superseded, err)
	case errors.Is(err, application.ErrStale):
		err = exit.With(exit.Timeout, err)
	case errors.Is(err, application.ErrOtherRepository):
		err = exit.With(exit.Usage, err)
	case err == nil:
		fmt.Fprintf(s.c.stderr, "Application %s is syncing %s\n", sync.Application, sync.Commit)
	}
	return sync, job, err
}

// applicationName returns the Application of the flags, or the one that created the Job.
func (s *applicationFlags) applicationName(ctx context.Context, p target, job application.Job) (application.Name, error) {
	if s.application != autoApplication {
		name, err := application.ParseName(s.application)
		if err != nil {
			return name, exit.With(exit.Usage, err)
		}
		return name, nil
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	return application.Detector{Job: job, PodInfo: s.podInfo, InstanceLabel: s.instanceLabel, Client: p.Core}.Application(ctx)
}
