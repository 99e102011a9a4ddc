// Package configsync runs a ConfigSync: it renders a commit, plans against the cluster, applies, prunes, waits and reports, all with the
// rights of its caller. It has two front ends: the commands `stoker config apply` and others make one run with the rights of a user, and
// package reconcile makes runs of all ConfigSyncs with the rights of ServiceAccounts.
//
// It lies below hooks and not in a program of its own, because a run needs nothing that is installed: a shell, a CI job, a CronJob or a
// hook of Argo CD starts it, and no program in the cluster holds rights on objects of others. Agents never import it.
//
// The packages below it are manifest (bytes become objects), kustomize, source (git), render (templates, overlays, targets), plan (what
// happens to each object) and apply (the API server).
package configsync

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/hooks/configsync/manifest"
	"stoker.io/stoker/hooks/configsync/render"
	"stoker.io/stoker/hooks/configsync/source"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Engine runs ConfigSyncs.
type Engine struct {
	// Connect returns the clients of the caller. It is called only when something of the cluster is needed.
	Connect func() (kube.Clients, error)
	// Own are the clients for the status and the Events, if they are not those of Connect. Then a run whose context is canceled writes
	// nothing more, because another replica may have taken over.
	Own *kube.Clients
	// Dir is a directory in a local clone. If set, it replaces the repository and the path of the spec.
	Dir string
	// Ref replaces the ref of the spec.
	Ref string
	// Remote configures the access to git.
	Remote repo.RemoteOptions
	// Cache keeps git objects between runs; nil keeps none.
	Cache *source.Cache
}

// Rendered are the objects of a commit.
type Rendered struct {
	Ref, Commit, Path string
	Objects           []manifest.Object
}

// Validate returns what is wrong with the spec.
func Validate(cs *v1alpha1.ConfigSync) error {
	if errs := validation.ConfigSync(cs); len(errs) > 0 {
		return failure.New(v1alpha1.ReasonManifestInvalid, "ConfigSync %s: %w", cs.Name, errs.ToAggregate())
	}
	return nil
}

// Render reads the commit of a ConfigSync and renders its objects. It changes nothing but cs.Status.Request.
func (e *Engine) Render(ctx context.Context, cs *v1alpha1.ConfigSync) (_ *Rendered, err error) {
	if bare := cs.Spec.Source == (v1alpha1.ConfigSource{}); e.Dir == "" || !bare {
		if err := Validate(cs); err != nil {
			return nil, err
		}
	}
	commit, dir, err := e.open(ctx, cs)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, commit.Close()) }()
	r := &Rendered{Ref: commit.Ref, Commit: commit.ID.String()}
	vars, err := e.variables(ctx, cs)
	if err != nil {
		return r, err
	}
	paths, err := r.paths(cs, dir, vars.public)
	if err != nil {
		return r, err
	}
	in := render.Input{
		Targets: cs.Spec.Targets, Template: cs.Spec.Render.Template, Tainted: vars.tainted, Namespace: cs.Namespace,
		Values: render.Values(r.facts(cs), vars.all), Secrets: vars.secrets,
	}
	var files []string
	for _, t := range cs.Spec.Targets {
		for _, f := range t.FromFiles {
			files = append(files, f.Path)
		}
	}
	if in.Layers, in.Files, err = commit.Read(ctx, paths, files, cs.Spec.Render.Kustomize != v1alpha1.ConfigKustomizeNever); err != nil {
		return r, err
	}
	r.Objects, err = render.Objects(ctx, in)
	return r, err
}

// facts are the values of templates, beside variables.
func (r *Rendered) facts(cs *v1alpha1.ConfigSync) map[string]string {
	return map[string]string{"CRName": cs.Name, "Namespace": cs.Namespace, "Ref": r.Ref, "Commit": r.Commit, "Path": r.Path}
}

// paths renders the path and the overlays. Values of Secrets are not available to them, because paths are shown.
func (r *Rendered) paths(cs *v1alpha1.ConfigSync, dir string, vars map[string]string) ([]string, error) {
	text, overlays := cs.Spec.Source.Paths()
	field := "spec.source.git"
	if cs.Spec.Source.GatewaySync != nil {
		field = "spec.source.gatewaySync"
	}
	if dir != "" {
		text, overlays = dir, nil
	}
	var err error
	if r.Path, err = render.Path(field+".path", text, render.Values(r.facts(cs), vars)); err != nil {
		return nil, err
	}
	paths := []string{r.Path}
	for i, o := range overlays {
		p, err := render.Path(fmt.Sprintf("%s.overlays[%d]", field, i), string(o), render.Values(r.facts(cs), vars))
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// open opens the commit. dir is the path in a local clone.
func (e *Engine) open(ctx context.Context, cs *v1alpha1.ConfigSync) (_ *source.Commit, dir string, err error) {
	var remote *repo.Remote
	wanted := source.Wanted{Ref: e.Ref}
	credentials := "" // their digest
	switch git, follow := cs.Spec.Source.Git, cs.Spec.Source.GatewaySync; {
	case e.Dir != "":
		if wanted.Ref == "" {
			wanted.Ref = "HEAD"
		}
		remote, dir, err = source.Clone(e.Dir, e.Remote)
	case follow != nil:
		remote, err = e.followed(ctx, cs, &wanted)
	default:
		read := func(ctx context.Context, name string) (map[string][]byte, error) {
			data, err := e.secret(cs)(ctx, name)
			credentials = digest(data)
			return data, err
		}
		if remote, err = source.Git(ctx, git, read, e.Remote); err == nil && wanted.Ref == "" {
			if err = desired(ctx, cs, remote, &wanted); err != nil {
				err = errors.Join(err, remote.Close())
			}
		}
	}
	if err != nil {
		return nil, "", err
	}
	commit, err := source.Open(ctx, remote, wanted, e.slot(cs, remote, credentials))
	return commit, dir, err
}

// slot returns the place for the objects of a ConfigSync. It is another one if the repository, the credentials or the account change: a
// spec with the id of a commit asks git for nothing that is there, so what old credentials could fetch must not be there for new ones.
// With a GatewaySync, git always has to bear the commit out.
func (e *Engine) slot(cs *v1alpha1.ConfigSync, remote *repo.Remote, credentials string) source.Slot {
	if e.Cache == nil || e.Dir != "" {
		return source.Slot{}
	}
	return source.Slot{Cache: e.Cache, Owner: string(cs.UID), Source: strings.Join([]string{remote.URL().String(), cs.Spec.Account(), credentials}, "\x00")}
}

// digest identifies the content of a Secret.
func digest(data map[string][]byte) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(data)) {
		fmt.Fprintf(h, "%q=%q\n", key, data[key])
	}
	return string(h.Sum(nil))
}

// desired adds to wanted the ref that a ConfigSync desires: a requested one, or that of its spec. It sets cs.Status.Request to what
// the status keeps of the request.
func desired(ctx context.Context, cs *v1alpha1.ConfigSync, remote *repo.Remote, wanted *source.Wanted) error {
	git := cs.Spec.Source.Git
	want, err := v1alpha1.DesiredRef(cs, "")
	if err == nil && want.ResolveSpec {
		ref, err := repo.ParseRef(git.Ref())
		if err != nil {
			return err
		}
		at, err := remote.Resolve(ctx, ref)
		if err != nil {
			return err
		}
		want, err = v1alpha1.DesiredRef(cs, at.Commit.String())
		if err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	cs.Status.Request = nil
	if want.Over != "" || want.Lapsed != "" {
		cs.Status.Request = &v1alpha1.RequestStatus{Over: want.Over, Lapsed: want.Lapsed, Refused: want.Refused}
	}
	if want.RefusedCommit != "" {
		return want.CheckCommit(want.RefusedCommit)
	}
	wanted.Ref = want.Ref
	switch {
	case want.Override:
		wanted.Allowed = git.RequestableRefs()
	case v1alpha1.IsCommit(git.Revision):
		wanted.Within = git.Branch
	}
	wanted.Check = func(commit string) error {
		err := want.CheckCommit(commit)
		if err != nil {
			cs.Status.Request.Refused = want.Refuse(commit)
		}
		return err
	}
	return nil
}

// followed returns the repository of a GatewaySync, and adds the commit that its gateways run to wanted.
func (e *Engine) followed(ctx context.Context, cs *v1alpha1.ConfigSync, wanted *source.Wanted) (*repo.Remote, error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, err
	}
	name := cs.Spec.Source.GatewaySync.Name
	gs, err := kube.GatewaySyncs(clients.Dynamic, cs.Namespace).Get(ctx, name)
	if err != nil {
		return nil, readable(err, "GatewaySync", cs.Namespace, name)
	}
	wanted.Verifier = e.verifier(cs, gs.Spec.Git.Verify)
	if wanted.Ref == "" {
		if _, err := v1alpha1.DesiredRef(cs, ""); err != nil { // no ref can be requested
			return nil, err
		}
		target, err := kube.SyncTargets(clients.Dynamic, cs.Namespace).Get(ctx, name)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, readable(err, "SyncTarget", cs.Namespace, name)
		}
		if err != nil || !asked(gs, target) {
			return nil, failure.New(v1alpha1.ReasonWaitingForLead, "GatewaySync %s has no commit for its spec and its request yet: run the command again when its agents have resolved one", name)
		}
		if wanted.Commit, err = plan.ParseID(target.Spec.Commit); err != nil {
			return nil, err
		}
		wanted.Ref, wanted.Spec = target.Spec.Ref, &gs.Spec.Git
	}
	return source.Followed(ctx, &gs.Spec.Git, e.secret(cs), e.Remote)
}

// asked reports whether a GatewaySync asks for what its SyncTarget says. Every gateway of the namespace can write the SyncTarget, so it
// is believed only as far as the GatewaySync and git bear it out. A request that the spec overrules counts for nothing; while it is
// open whether one has lapsed, the ref of the spec counts, too.
func asked(gs *v1alpha1.GatewaySync, target *v1alpha1.SyncTarget) bool {
	t := &target.Spec
	d, err := v1alpha1.DesiredRef(gs, "")
	if err != nil || t.Commit == "" || t.Generation != gs.Generation {
		return false
	}
	return t.Ref == d.Ref && d.CheckCommit(t.Commit) == nil || d.ResolveSpec && t.Ref == gs.Spec.Git.Ref
}

// verifier returns what verifies the commits of a GatewaySync that delivers only signed ones.
func (e *Engine) verifier(cs *v1alpha1.ConfigSync, v *v1alpha1.GitVerify) *repo.Verifier {
	if v == nil {
		return nil
	}
	return repo.NewVerifier(*v, "spec.git.verify of the GatewaySync", func() ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), maxKeys)
		defer cancel()
		switch {
		case v.KeysSecretRef != nil:
			data, err := e.secret(cs)(ctx, v.KeysSecretRef.Name)
			return data[v.KeysSecretRef.Key], err
		case v.KeysConfigMapRef != nil:
			data, err := e.configMap(ctx, cs, v.KeysConfigMapRef.Name)
			return []byte(data[v.KeysConfigMapRef.Key]), err
		}
		return nil, errors.New("neither keysSecretRef nor keysConfigMapRef is set")
	})
}

// readable explains why an object that the spec names cannot be read.
func readable(err error, kind, namespace, name string) error {
	switch {
	case apierrors.IsNotFound(err):
		return failure.New(v1alpha1.ReasonSourceMissing, "%s %s does not exist in namespace %s: create it, or correct the spec", kind, name, namespace)
	case apierrors.IsForbidden(err):
		return failure.New(v1alpha1.ReasonApplyForbidden, "the caller may not get %s %s in namespace %s: grant it the verb get", kind, name, namespace)
	}
	return fmt.Errorf("read %s %s: %w", kind, name, err)
}

// secret reads Secrets of the ConfigSync's namespace.
func (e *Engine) secret(cs *v1alpha1.ConfigSync) source.Reader {
	return func(ctx context.Context, name string) (map[string][]byte, error) {
		clients, err := e.Connect()
		if err != nil {
			return nil, err
		}
		s, err := clients.Core.CoreV1().Secrets(cs.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, readable(err, "Secret", cs.Namespace, name)
		}
		return s.Data, nil
	}
}

// configMap reads a ConfigMap of the ConfigSync's namespace.
func (e *Engine) configMap(ctx context.Context, cs *v1alpha1.ConfigSync, name string) (map[string]string, error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, err
	}
	m, err := clients.Core.CoreV1().ConfigMaps(cs.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, readable(err, "ConfigMap", cs.Namespace, name)
	}
	return m.Data, nil
}

// maxKeys bounds the reading of public keys.
const maxKeys = 30 * time.Second

const (
	maxVars = 512       // in all
	maxVar  = 64 << 10  // bytes of one
	maxAll  = 256 << 10 // bytes of all
)

// variables are those of the spec and of the objects that it names.
type variables struct {
	all, public map[string]string // public has no values of Secrets
	secrets     []string          // the values of Secrets
	tainted     bool
}

func (e *Engine) variables(ctx context.Context, cs *v1alpha1.ConfigSync) (variables, error) {
	v := variables{all: map[string]string{}, public: map[string]string{}}
	for _, from := range cs.Spec.Render.VarsFrom {
		if err := e.varsFrom(ctx, cs, from, &v); err != nil {
			return v, err
		}
	}
	for name, value := range cs.Spec.Render.Vars {
		v.all[name], v.public[name] = string(value), string(value)
	}
	size := 0
	for _, name := range slices.Sorted(maps.Keys(v.all)) {
		if size += len(v.all[name]); len(v.all[name]) > maxVar || size > maxAll || len(v.all) > maxVars {
			return v, failure.New(v1alpha1.ReasonLimitExceeded, "spec.render: at most %d variables of %d bytes each and %d in total are allowed", maxVars, maxVar, maxAll)
		}
	}
	return v, nil
}

// varsFrom adds the variables of one object.
func (e *Engine) varsFrom(ctx context.Context, cs *v1alpha1.ConfigSync, from v1alpha1.ConfigVars, v *variables) error {
	var err error
	data := map[string]string{}
	if from.SecretRef != nil {
		v.tainted = true
		var values map[string][]byte
		values, err = e.secret(cs)(ctx, from.SecretRef.Name)
		for name, value := range values {
			data[name] = strings.TrimRight(string(value), "\r\n")
			v.secrets = append(v.secrets, data[name])
			delete(v.public, name)
		}
	} else {
		if data, err = e.configMap(ctx, cs, from.ConfigMapRef.Name); err == nil {
			maps.Copy(v.public, data)
		}
	}
	if from.Optional && failure.Is(err, v1alpha1.ReasonSourceMissing) {
		return nil
	}
	maps.Copy(v.all, data)
	return err
}
