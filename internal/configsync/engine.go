// Package configsync runs a ConfigSync: it renders a commit, plans against the cluster, applies, prunes, waits and reports. It has two front
// ends. Commands such as `stoker config apply` make one run, all of it with the rights of a user. Package reconcile runs all ConfigSyncs with
// the rights of ServiceAccounts, and reports with the rights of its program (Engine.StatusClients).
//
// It is a part of the command stoker and not a program of its own, because a run needs no installed component: a shell, a CI job, a
// CronJob or a hook of Argo CD can start it, and no program in the cluster needs rights on the objects of others. Agents never import it.
//
// The packages below it are manifest (parses objects), kustomize, chart and jsonnet (make objects, in a child process of package builder),
// source (reads git), render (templates, overlays, targets), plan (decides what happens to each object) and apply (calls the API server).
package configsync

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"stoker.io/stoker/agent/plan"
	"stoker.io/stoker/agent/repo"
	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/api/v1alpha1/desiredref"
	"stoker.io/stoker/api/v1alpha1/syntax"
	"stoker.io/stoker/api/v1alpha1/validation"
	"stoker.io/stoker/internal/configsync/manifest"
	"stoker.io/stoker/internal/configsync/render"
	"stoker.io/stoker/internal/configsync/source"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/kube"
)

// Engine runs ConfigSyncs.
type Engine struct {
	// Connect returns the clients of the caller. The engine calls it only when it needs the cluster, and may call it several times.
	Connect func() (kube.Clients, error)
	// StatusClients write the status, the Events and requests for a rollback, and look up the ConfigSyncs that own live objects. nil means
	// the clients of Connect. If set, a run whose context is canceled does not report, because another replica may have taken over.
	StatusClients *kube.Clients
	// Dir is a directory in a local clone. If set, it replaces the repository, the path and the overlays of the spec, and without Ref the
	// run takes the HEAD of the clone.
	Dir string
	// Ref replaces the ref of the spec and that of a request. "" replaces nothing.
	Ref string
	// Remote configures the access to git.
	Remote repo.RemoteOptions
	// Cache keeps git objects between runs; nil keeps none.
	Cache *source.Cache
}

// Rendered is a commit with the objects that were rendered from it.
type Rendered struct {
	Ref, Commit, Path string
	Subject           string // see v1alpha1.CommitRecord
	Objects           []manifest.Object
}

// validate returns an error with the reason ManifestInvalid if the spec is invalid.
func validate(cs *v1alpha1.ConfigSync) error {
	if errs := validation.ConfigSync(cs); len(errs) > 0 {
		return failure.New(v1alpha1.ReasonManifestInvalid, "ConfigSync %s: %w", cs.Name, errs.ToAggregate())
	}
	return nil
}

// Render reads the commit of a ConfigSync and renders its objects. It changes nothing except cs.Status.Request. If it fails after it has
// opened the commit, it returns the commit without objects, and the error. If it fails before, the result is nil.
func (e *Engine) Render(ctx context.Context, cs *v1alpha1.ConfigSync) (_ *Rendered, err error) {
	if noSource := cs.Spec.Source == (v1alpha1.ConfigSource{}); e.Dir == "" || !noSource {
		if err := validate(cs); err != nil {
			return nil, err
		}
	}
	commit, dir, err := e.openCommit(ctx, cs)
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
		Vars: render.Values(r.builtinValues(cs), vars.all), Secrets: vars.secrets, Release: cmp.Or(cs.Spec.Render.ReleaseName, cs.Name, path.Base(r.Path)),
	}
	for i, f := range cs.Spec.Render.ValuesFiles {
		p, err := render.Path(fmt.Sprintf("spec.render.valuesFiles[%d]", i), string(f), render.Values(r.builtinValues(cs), vars.public))
		if err != nil {
			return r, err
		}
		in.Values = append(in.Values, p)
	}
	files := slices.Clone(in.Values)
	for _, t := range cs.Spec.Targets {
		for _, f := range t.FromFiles {
			files = append(files, f.Path)
		}
	}
	if in.Layers, in.Files, err = commit.Read(ctx, paths, files, source.Excludes(&cs.Spec.Source), cs.Spec.Render.Kustomize != v1alpha1.ConfigKustomizeNever); err != nil {
		return r, err
	}
	r.Subject = commit.Subject()
	r.Objects, err = render.Objects(ctx, in)
	return r, err
}

// builtinValues returns the values that templates can use in addition to variables.
func (r *Rendered) builtinValues(cs *v1alpha1.ConfigSync) map[string]string {
	return map[string]string{"CRName": cs.Name, "Namespace": cs.Namespace, "Ref": r.Ref, "Commit": r.Commit, "Path": r.Path}
}

// paths renders the path and the overlays. vars must not contain values of Secrets, because the status shows paths.
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
	if r.Path, err = render.Path(field+".path", text, render.Values(r.builtinValues(cs), vars)); err != nil {
		return nil, err
	}
	paths := []string{r.Path}
	for i, o := range overlays {
		p, err := render.Path(fmt.Sprintf("%s.overlays[%d]", field, i), string(o), render.Values(r.builtinValues(cs), vars))
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	return paths, nil
}

// openCommit opens the commit of a ConfigSync. The returned dir is the path of e.Dir in its clone, or "" without e.Dir.
func (e *Engine) openCommit(ctx context.Context, cs *v1alpha1.ConfigSync) (_ *source.Commit, dir string, err error) {
	var remote *repo.Remote
	wanted := source.CommitSpec{Ref: e.Ref}
	credentialsDigest := ""
	switch git, follow := cs.Spec.Source.Git, cs.Spec.Source.GatewaySync; {
	case e.Dir != "":
		if wanted.Ref == "" {
			wanted.Ref = "HEAD"
		}
		remote, dir, err = source.CloneRemote(e.Dir, e.Remote)
	case follow != nil:
		if remote, err = e.openGatewaySync(ctx, cs, &wanted); syntax.IsCommit(wanted.Ref) {
			credentialsDigest = rand.Text()
		}
	default:
		read := func(ctx context.Context, name string) (map[string][]byte, error) {
			data, err := e.secretReader(cs)(ctx, name)
			credentialsDigest = secretDigest(data)
			return data, err
		}
		if remote, err = source.GitRemote(ctx, git, read, e.Remote); err == nil && wanted.Ref == "" {
			if err = addDesiredRef(ctx, cs, remote, &wanted); err != nil {
				err = errors.Join(err, remote.Close())
			}
		}
	}
	if err != nil {
		return nil, "", err
	}
	commit, err := source.Open(ctx, remote, wanted, e.cacheSlot(cs, remote, credentialsDigest))
	return commit, dir, err
}

// cacheSlot returns the slot of the cache for the git objects of a ConfigSync. Its Source changes with the repository, the credentials
// and the account: if the spec names a commit ID, cached objects are used without a request to git, so objects that old credentials
// fetched must not be available to new ones. If the ConfigSync follows a GatewaySync, git confirms the commit in each run. Only if the ref is a
// commit ID it does not, so then openCommit passes a new credentialsDigest in each run.
func (e *Engine) cacheSlot(cs *v1alpha1.ConfigSync, remote *repo.Remote, credentialsDigest string) source.Slot {
	if e.Cache == nil || e.Dir != "" {
		return source.Slot{}
	}
	return source.Slot{Cache: e.Cache, Owner: string(cs.UID), Source: strings.Join([]string{remote.URL().String(), cs.Spec.Account(), credentialsDigest}, "\x00")}
}

// secretDigest identifies the content of a Secret.
func secretDigest(data map[string][]byte) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(data)) {
		fmt.Fprintf(h, "%q=%q\n", key, data[key])
	}
	return string(h.Sum(nil))
}

// addDesiredRef adds the desired ref of a ConfigSync to wanted: the requested ref, or the ref of its spec. It sets cs.Status.Request to
// what the status reports about the request.
func addDesiredRef(ctx context.Context, cs *v1alpha1.ConfigSync, remote *repo.Remote, wanted *source.CommitSpec) error {
	git := cs.Spec.Source.Git
	want, _, err := desiredref.Resolve(cs, func(name string) (string, error) {
		ref, err := repo.ParseRef(name)
		if err != nil {
			return "", err
		}
		at, err := remote.Resolve(ctx, ref)
		switch {
		case failure.Is(err, v1alpha1.ReasonRefNotFound):
			return "", nil
		case err != nil:
			return "", err
		}
		return at.Commit.String(), nil
	})
	if err != nil {
		return err
	}
	cs.Status.Request = want.Status()
	if want.RefusedCommit != "" {
		return want.CheckCommit(want.RefusedCommit)
	}
	wanted.Ref = want.Ref
	switch {
	case want.Override:
		wanted.Allowed = git.RequestableRefs()
	case syntax.IsCommit(git.Revision):
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

// openGatewaySync returns the repository of the GatewaySync that cs follows. It adds the verifier of signatures to wanted and, if wanted has
// no ref, the commit that the gateways should run.
func (e *Engine) openGatewaySync(ctx context.Context, cs *v1alpha1.ConfigSync, wanted *source.CommitSpec) (*repo.Remote, error) {
	clients, err := e.Connect()
	if err != nil {
		return nil, err
	}
	name := cs.Spec.Source.GatewaySync.Name
	gs, err := kube.GatewaySyncs(clients.Dynamic, cs.Namespace).Get(ctx, name)
	if err != nil {
		return nil, readError(err, "GatewaySync", cs.Namespace, name)
	}
	wanted.Verifier = e.verifier(cs, gs.Spec.Git.Verify)
	if wanted.Ref == "" {
		if _, err := desiredref.Of(cs, ""); err != nil { // a user requested a ref, which is not possible for this ConfigSync
			return nil, err
		}
		target, err := kube.SyncTargets(clients.Dynamic, cs.Namespace).Get(ctx, name)
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, readError(err, "SyncTarget", cs.Namespace, name)
		}
		if err != nil || !targetMatches(gs, target) {
			return nil, failure.New(v1alpha1.ReasonWaitingForLead, "GatewaySync %s has no commit for its spec and its request yet: run the command again when its agents have resolved one", name)
		}
		if wanted.Commit, err = plan.ParseID(target.Spec.Commit); err != nil {
			return nil, err
		}
		wanted.Ref, wanted.Spec = target.Spec.Ref, &gs.Spec.Git
	}
	return source.GatewaySyncRemote(ctx, &gs.Spec.Git, e.secretReader(cs), e.Remote)
}

// targetMatches reports whether a SyncTarget names a commit that its GatewaySync desires. Every gateway of the namespace can write the
// SyncTarget, so the engine trusts it only if the GatewaySync and git confirm it. A lapsed request has no effect. Until the ref of the spec
// is resolved, it is unknown whether the request has lapsed, so the ref of the spec matches, too.
func targetMatches(gs *v1alpha1.GatewaySync, target *v1alpha1.SyncTarget) bool {
	t := &target.Spec
	d, err := desiredref.Of(gs, "")
	if err != nil || t.Commit == "" || t.Generation != gs.Generation {
		return false
	}
	return t.Ref == d.Ref && d.CheckCommit(t.Commit) == nil || d.ResolveSpec && t.Ref == gs.Spec.Git.Ref
}

// verifier returns the verifier of signed commits, or nil if the GatewaySync also delivers unsigned ones.
func (e *Engine) verifier(cs *v1alpha1.ConfigSync, v *v1alpha1.GitVerify) *repo.Verifier {
	if v == nil {
		return nil
	}
	return repo.NewVerifier(*v, "spec.git.verify of the GatewaySync", func() ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), keysTimeout)
		defer cancel()
		switch {
		case v.KeysSecretRef != nil:
			data, err := e.secretReader(cs)(ctx, v.KeysSecretRef.Name)
			return data[v.KeysSecretRef.Key], err
		case v.KeysConfigMapRef != nil:
			data, err := e.configMap(ctx, cs, v.KeysConfigMapRef.Name)
			return []byte(data[v.KeysConfigMapRef.Key]), err
		}
		return nil, errors.New("neither keysSecretRef nor keysConfigMapRef is set")
	})
}

// readError explains why the object kind/name, which the spec names, cannot be read.
func readError(err error, kind, namespace, name string) error {
	switch {
	case apierrors.IsNotFound(err):
		return failure.New(v1alpha1.ReasonSourceMissing, "%s %s does not exist in namespace %s: create it, or correct the spec", kind, name, namespace)
	case apierrors.IsForbidden(err):
		return failure.New(v1alpha1.ReasonApplyForbidden, "the caller may not get %s %s in namespace %s: grant it the verb get", kind, name, namespace)
	}
	return fmt.Errorf("read %s %s: %w", kind, name, err)
}

// secretReader returns a function that reads Secrets of the ConfigSync's namespace.
func (e *Engine) secretReader(cs *v1alpha1.ConfigSync) source.SecretReader {
	return func(ctx context.Context, name string) (map[string][]byte, error) {
		clients, err := e.Connect()
		if err != nil {
			return nil, err
		}
		s, err := clients.Core.CoreV1().Secrets(cs.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, readError(err, "Secret", cs.Namespace, name)
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
		return nil, readError(err, "ConfigMap", cs.Namespace, name)
	}
	return m.Data, nil
}

// keysTimeout bounds the reading of the public keys that verify commits.
const keysTimeout = 30 * time.Second
