package configsync

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/internal/failure"
	"stoker.io/stoker/internal/giturl"
	"stoker.io/stoker/internal/kube"
	"stoker.io/stoker/internal/request"
)

// maxDependencies bounds the ConfigSyncs that are read to find a cycle.
const maxDependencies = 64

// checkDependencies returns an error unless every direct dependency of cs is ready. If the specs of cs and a dependency name the same source,
// and cs runs the ref of its spec, the dependency must also run the same commit. If it runs another ref by a request or a rollback, cs waits
// until it runs that commit. checkDependencies reads the dependencies with the rights of the caller.
func (e *Engine) checkDependencies(ctx context.Context, cs *v1alpha1.ConfigSync, rendered *Rendered) error {
	if len(cs.Spec.DependsOn) == 0 {
		return nil
	}
	clients, err := e.Connect()
	if err != nil {
		return err
	}
	all, err := allDependencies(ctx, clients, cs)
	if err != nil {
		return err
	}
	own := originOf(cs)
	for _, d := range cs.Spec.DependsOn {
		var source origin
		var verdict request.Verdict
		if d.EffectiveKind() == v1alpha1.DependsOnConfigSync {
			dependency := all[d.Name]
			source, verdict = originOf(dependency), request.ReadConfig(dependency, "")
		} else {
			dependency, err := kube.GatewaySyncs(clients.Dynamic, cs.Namespace).Get(ctx, d.Name)
			if err != nil {
				return dependencyError(err, d, cs.Namespace)
			}
			source = origin{repo: dependency.Spec.Git.Repo, ref: dependency.Spec.Git.Ref, gatewaySync: dependency.Name}
			// An error here only says that the SyncTarget cannot be read. Its lock shows whether an agent still keeps the status up to date, so
			// without the SyncTarget a ready GatewaySync is not believed.
			if verdict, err = request.ReadWithLock(ctx, clients, dependency, ""); err != nil {
				return fmt.Errorf("spec.dependsOn: %w", readError(err, "SyncTarget", cs.Namespace, d.Name))
			}
		}
		switch {
		case verdict.Phase != request.Succeeded:
			return failure.New(v1alpha1.ReasonDependencyNotReady, "waiting for %s %s: %s", d.EffectiveKind(), d.Name, verdict.Message)
		case own.same(source) && own.follows(rendered.Ref) && verdict.Commit != rendered.Commit:
			return failure.New(v1alpha1.ReasonDependencyNotReady, "waiting for %s %s: it runs %.7s and not %.7s", d.EffectiveKind(), d.Name, verdict.Commit, rendered.Commit)
		}
	}
	return nil
}

// allDependencies returns the ConfigSyncs that cs depends on, directly or not, by name. If cs is one of them, the reason of the error is
// DependencyCycle. A cycle without cs is ignored: the status of its members reports it.
func allDependencies(ctx context.Context, clients kube.Clients, cs *v1alpha1.ConfigSync) (map[string]*v1alpha1.ConfigSync, error) {
	found := map[string]*v1alpha1.ConfigSync{}
	type path []*v1alpha1.ConfigSync
	todo := []path{{cs}}
	for len(todo) > 0 {
		chain := todo[0]
		todo = todo[1:]
		for _, d := range chain[len(chain)-1].Spec.DependsOn {
			if d.EffectiveKind() != v1alpha1.DependsOnConfigSync || found[d.Name] != nil {
				continue
			}
			if d.Name == cs.Name {
				var names []string
				for _, c := range chain {
					names = append(names, c.Name)
				}
				return nil, failure.New(v1alpha1.ReasonDependencyCycle, "spec.dependsOn: %s depend on each other: remove one of these dependencies",
					strings.Join(append(names, cs.Name), " → "))
			}
			if len(found) == maxDependencies {
				return nil, failure.New(v1alpha1.ReasonLimitExceeded, "spec.dependsOn: the ConfigSync depends on more than %d others, directly or not", maxDependencies)
			}
			dependency, err := kube.ConfigSyncs(clients.Dynamic, cs.Namespace).Get(ctx, d.Name)
			switch {
			case err == nil:
				found[d.Name] = dependency
				todo = append(todo, append(slices.Clone(chain), dependency))
			case len(chain) == 1 || !apierrors.IsNotFound(err): // the object that names a missing one reports it
				return nil, dependencyError(err, d, cs.Namespace)
			}
		}
	}
	return found, nil
}

// dependencyError explains why a dependency cannot be read. If the dependency does not exist yet, cs waits for it.
func dependencyError(err error, d v1alpha1.ConfigDependency, namespace string) error {
	if apierrors.IsNotFound(err) {
		return failure.New(v1alpha1.ReasonDependencyNotReady, "waiting for %s %s, which does not exist in namespace %s", d.EffectiveKind(), d.Name, namespace)
	}
	return fmt.Errorf("spec.dependsOn: %w", readError(err, string(d.EffectiveKind()), namespace, d.Name))
}

// origin is where the commit of an object comes from: the ref of a repository, or a GatewaySync.
type origin struct{ repo, ref, gatewaySync string }

func originOf(cs *v1alpha1.ConfigSync) origin {
	if follow := cs.Spec.Source.GatewaySync; follow != nil {
		return origin{gatewaySync: follow.Name}
	}
	if git := cs.Spec.Source.Git; git != nil {
		return origin{repo: git.RepoURL, ref: git.Ref()}
	}
	return origin{}
}

// same reports whether the specs of two objects ask for the same commit.
func (o origin) same(p origin) bool {
	if o.gatewaySync != "" && o.gatewaySync == p.gatewaySync {
		return true
	}
	return o.repo != "" && o.ref == p.ref && giturl.Same(o.repo, p.repo)
}

// follows reports whether ref comes from the spec. If the ref was requested for this ConfigSync, its dependencies need not run the same
// commit.
func (o origin) follows(ref string) bool { return o.gatewaySync != "" || o.ref == ref }
