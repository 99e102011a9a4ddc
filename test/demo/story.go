package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/create/command"
	"stoker.io/stoker/test/gitserver"
)

// step is one scene of the story.
type step struct {
	title string
	play  func(context.Context, *world) error
}

var steps = []step{
	{"A GatewaySync from the folders of a repository", created},
	{"First sync", firstSync},
	{"A commit arrives", commitArrives},
	{"A commit for the other plant", otherPlant},
	{"A save in the Designer", designerSaves},
	{"Git changes the same view: a conflict", conflict},
	{"A broken commit", brokenCommit},
	{"Back to an earlier commit", goBack},
	{"The branch is repaired, and followed again", goOn},
	{"A commit that the gateway cannot load is rolled back", goesBackByItself},
	{"The same mistake again is refused before it is written", refused},
	{"A save becomes a proposal, and comes back", changeGoesBack},
}

func created(ctx context.Context, w *world) error {
	w.say("The repository has two plants and what they share. stoker create finds them, and writes a GatewaySync.")
	var found, object strings.Builder
	stoker := command.New(&command.Env{Stdout: &object, Stderr: &found, Namespace: func() string { return "" }})
	stoker.SetArgs([]string{"gatewaysync", "plants", "--repo", w.git.URL("plants.git")})
	if err := stoker.ExecuteContext(ctx); err != nil {
		return err
	}
	list, _, _ := strings.Cut(found.String(), "left out: ")
	w.show("$ stoker create gatewaysync plants --repo " + w.git.URL("plants.git") + " > gatewaysync.yaml\n" + list)
	if err := os.WriteFile(w.file(), []byte(object.String()), 0o644); err != nil {
		return err
	}
	var profiles []string
	err := w.edit(func(gs *v1alpha1.GatewaySync) {
		profiles = slices.Sorted(maps.Keys(gs.Spec.Sync.Profiles))
		// For this machine: short intervals, and the key that the gateways already have.
		gs.Spec.Polling.Interval = "1s"
		gs.Spec.Sync.Defaults.SyncPeriod = new(int32(5))
		gs.Spec.Gateway.API = &v1alpha1.GatewayAPI{SecretName: "gateway-api", SecretKey: "apiKey"}
	})
	return errors.Join(err, w.check(slices.Equal(profiles, []string{"site-a", "site-b"}), "each plant has a profile"))
}

func firstSync(ctx context.Context, w *world) error {
	w.say("A gateway runs: site-a. The agent starts.")
	if err := w.startAgent(w.site); err != nil {
		return err
	}
	s, err := w.agent.synced(ctx, w.commits["first"])
	if err != nil {
		return err
	}
	w.show(strings.Join(s.Plan, "\n"))
	if err := w.isLive(w.commits["first"]); err != nil {
		return err
	}
	differ, err := w.differing(w.commits["first"])
	if err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(w.data, "projects", "site-b"))
	return errors.Join(
		w.check(len(differ) == 0, "every file of site-a is on the disk byte for byte as in git%s", strings.Join(append([]string{""}, differ...), "\n     ")),
		w.check(errors.Is(err, fs.ErrNotExist), "nothing of site-b came along"),
		w.check(len(w.gateway.Data.LoadErrors()) == 0, "the gateway could load everything"),
	)
}

func commitArrives(ctx context.Context, w *world) error {
	w.say("A commit changes the title of the overview of site-a.")
	before := w.git.Stats().PackBytes
	c := w.commit("title", "a better title", gitserver.Write(inGit, w.view(w.commits["first"], "Bottling: Line 1", "Bottling: Line 1, day shift")))
	s, err := w.agent.synced(ctx, c)
	if err != nil {
		return err
	}
	w.show(strings.Join(s.Plan, "\n"))
	if err := w.isLive(c); err != nil {
		return err
	}
	bytes := w.git.Stats().PackBytes - before
	return w.check(bytes < 2000, "git sent %d bytes for it", bytes)
}

func otherPlant(ctx context.Context, w *world) error {
	w.say("A commit changes site-b only.")
	scans := w.scans()
	c := w.commit("furnace", "site-b: a new set point", gitserver.Write(
		"services/site-b/config/resources/core/ignition/tag-definition/default/Furnace/tags.json", "[]"))
	s, err := w.agent.synced(ctx, c)
	if err != nil {
		return err
	}
	w.show(s.Message)
	files := s.Report.Files
	return errors.Join(
		w.check(files.Added+files.Modified+files.Deleted == 0, "no file of site-a was written, and the agent stands at %.7s", c),
		w.check(w.scans() == scans, "the gateway was not asked to scan"),
	)
}

func designerSaves(ctx context.Context, w *world) error {
	w.say("Maria changes the same overview on the gateway, in a Designer, and saves.")
	before := w.commits["furnace"]
	hers := w.view(before, "Bottling: Line 1, day shift", "Bottling: Line 1 (Maria was here)")
	if err := w.save(ctx, "site-a", strings.TrimPrefix(overview, "projects/site-a/"), "view.json", hers); err != nil {
		return err
	}
	s, err := w.agent.await(ctx, "drift is seen", func(s state) bool { return s.Drift != nil && s.Drift.Files > 0 })
	if err != nil {
		return err
	}
	for _, p := range s.Drift.Paths {
		w.show(fmt.Sprintf("drift: %s: %s", p.Path, p.What))
	}
	got, err := os.ReadFile(filepath.Join(w.data, filepath.FromSlash(viewFile)))
	if err != nil {
		return err
	}
	return errors.Join(
		w.check(len(s.Drift.Paths) == 2 && s.Drift.Paths[1].Path == viewFile, "the agent reports the view that differs from git, and that its resource.json lists a thumbnail now"),
		w.check(string(got) == hers, "and does not change it: driftPolicy is report"),
	)
}

func conflict(ctx context.Context, w *world) error {
	w.say("Then a commit changes that view too. Git wins, and what Maria saved is kept in lost+found.")
	c := w.commit("night", "night shift", gitserver.Write(inGit, w.view(w.commits["furnace"], "day shift", "night shift")))
	s, err := w.agent.synced(ctx, c)
	if err != nil {
		return err
	}
	w.show(strings.Join(s.Plan, "\n"))
	if err := w.isLive(c); err != nil {
		return err
	}
	lost, err := w.find(filepath.Join(w.data, ".stoker", "lost+found"), "Maria was here")
	if err != nil {
		return err
	}
	w.show(strings.Join(lost, "\n"))
	return w.check(len(lost) == 1, "Maria's version lies in lost+found")
}

// find returns the view.json files below dir that contain a text, relative to the data directory.
func (w *world) find(dir, text string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "view.json" {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(content), text) {
			relative, _ := filepath.Rel(w.data, path) // both are absolute
			found = append(found, filepath.ToSlash(relative))
		}
		return err
	})
	return found, err
}

func brokenCommit(ctx context.Context, w *world) error {
	w.say("A commit has a view that is not valid JSON, and another change that is fine.")
	scans := w.scans()
	whole := w.view(w.commits["night"], "night shift", "late shift")
	c := w.commit("broken", "half a view",
		gitserver.Write(inGit, whole[:len(whole)/2]),
		gitserver.Write("shared/projects/plant-library/ignition/script-python/units/code.py", "# all new\n"))
	s, err := w.agent.await(ctx, "the commit is refused", func(s state) bool {
		return s.Target == c && s.Reason == string(v1alpha1.ReasonConfigSyntaxError)
	})
	if err != nil {
		return err
	}
	w.show(fmt.Sprintf("%s/%s: %s", s.Phase, s.Reason, s.Message))
	if err := w.check(s.Commit == w.commits["night"], "the agent stands at %.7s, not at %.7s", s.Commit, c); err != nil {
		return err
	}
	if err := w.isLive(w.commits["night"]); err != nil {
		return err
	}
	units, err := os.ReadFile(filepath.Join(w.data, "projects/plant-library/ignition/script-python/units/code.py"))
	if err != nil {
		return err
	}
	return errors.Join(
		w.check(!strings.Contains(string(units), "all new"), "nothing of the broken commit was written, the fine part neither"),
		w.check(w.scans() == scans, "the gateway was not asked to scan"),
	)
}

func goBack(ctx context.Context, w *world) error {
	c := w.commits["title"]
	w.say("An operator asks for the commit of the day shift: an annotation on the GatewaySync.")
	w.show(v1alpha1.AnnotationRequestedRef + ": " + c)
	err := w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Annotations = map[string]string{v1alpha1.AnnotationRequestedRef: c}
	})
	if err != nil {
		return err
	}
	s, err := w.agent.synced(ctx, c)
	if err != nil {
		return err
	}
	w.show(strings.Join(s.Plan, "\n"))
	return w.isLive(c)
}

func goOn(ctx context.Context, w *world) error {
	w.say("The branch gets a commit that repairs the view, and the request is removed.")
	c := w.commit("repaired", "the whole view", gitserver.Write(inGit, w.view(w.commits["night"], "night shift", "late shift")))
	if err := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Annotations = nil }); err != nil {
		return err
	}
	s, err := w.agent.synced(ctx, c)
	if err != nil {
		return err
	}
	w.show(strings.Join(s.Plan, "\n"))
	return w.isLive(c)
}

func goesBackByItself(ctx context.Context, w *world) error {
	w.say("The GatewaySync gets spec.snapshots and spec.autoRollback. Then a commit misnames the project that site-a inherits from.")
	err := w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Snapshots, gs.Spec.AutoRollback = &v1alpha1.SnapshotsSpec{Enabled: true}, &v1alpha1.AutoRollbackSpec{Enabled: true}
	})
	if err != nil {
		return err
	}
	good, projectInGit := w.commits["repaired"], "services/site-a/"+projectFile
	right := w.repo.Content(good, projectInGit)
	c := w.commit("misnamed", "site-a: another library", gitserver.Write(projectInGit, strings.Replace(right, "plant-library", "plants-library", 1)))
	tried := func(s state) bool { return s.Commit == c && s.Reason == string(v1alpha1.ReasonVerificationFailed) }
	s, err := w.agent.await(ctx, "the gateway does not load the commit", tried)
	if err != nil {
		return err
	}
	w.show(fmt.Sprintf("%s/%s: %s", s.Phase, s.Reason, s.Message))
	packs := w.git.Stats().UploadPacks
	w.say("The JSON is valid, so only the gateway can tell. The agent gives it half a minute to load the project, and takes the sync back.")
	s, err = w.agent.await(ctx, "the gateway goes back", func(s state) bool { return s.Target == c && s.Reason == string(v1alpha1.ReasonRolledBack) })
	if err != nil {
		return err
	}
	w.show(fmt.Sprintf("%s/%s: %s", s.Phase, s.Reason, s.Message))
	got, err := os.ReadFile(filepath.Join(w.data, filepath.FromSlash(projectFile)))
	if err != nil {
		return err
	}
	err = errors.Join(
		w.check(s.Commit == good, "the agent stands at %.7s again, and blocks %.7s", s.Commit, c),
		w.check(string(got) == right, "the project inherits from its library again"),
		w.isLive(good),
	)
	if err != nil {
		return err
	}
	w.say("The next commit names it right. You do not have to clear anything.")
	c = w.commit("named", "site-a: shift leaders", gitserver.Write(projectInGit, strings.Replace(right, "operators", "shift leaders", 1)))
	if s, err = w.agent.synced(ctx, c); err != nil {
		return err
	}
	w.show(strings.Join(s.Plan, "\n"))
	return w.check(w.git.Stats().UploadPacks == packs+1, "the way back needed no git: the agent fetched once since, for this commit")
}

func refused(ctx context.Context, w *world) error {
	w.say("The GatewaySync gets validation.references: refuse. The commit that misnames the library comes once more.")
	err := w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Validation = &v1alpha1.ValidationSpec{References: v1alpha1.ReferencesRefuse}
	})
	if err != nil {
		return err
	}
	good, projectInGit := w.commits["named"], "services/site-a/"+projectFile
	right, scans := w.repo.Content(good, projectInGit), w.scans()
	c := w.commit("misnamed again", "site-a: another library", gitserver.Write(projectInGit, strings.Replace(right, "plant-library", "plants-library", 1)))
	s, err := w.agent.await(ctx, "the commit is refused", func(s state) bool {
		return s.Target == c && s.Reason == string(v1alpha1.ReasonReferenceMissing)
	})
	if err != nil {
		return err
	}
	w.show(fmt.Sprintf("%s/%s: %s", s.Phase, s.Reason, s.Message))
	got, err := os.ReadFile(filepath.Join(w.data, filepath.FromSlash(projectFile)))
	if err != nil {
		return err
	}
	if err := errors.Join(
		w.check(s.Commit == good && string(got) == right, "nothing was written, and the agent stands at %.7s", good),
		w.check(strings.Contains(s.Message, `did you mean "plant-library"`), "the message says which name was meant"),
		w.check(w.scans() == scans, "the gateway was not asked to scan"),
	); err != nil {
		return err
	}
	if err := w.edit(func(gs *v1alpha1.GatewaySync) { gs.Spec.Validation = nil }); err != nil {
		return err
	}
	_, err = w.agent.synced(ctx, w.commit("right", "site-a: the library", gitserver.Write(projectInGit, right)))
	return err
}

func changeGoesBack(ctx context.Context, w *world) (err error) {
	w.say("site-b starts; both sites have the style of alarms, from shared/. The GatewaySync gets spec.bidirectional.")
	if w.other, err = newSite(w.dir, "site-b", w.gateway.Token()); err != nil {
		return err
	}
	if err := w.startAgent(w.other); err != nil {
		return err
	}
	if _, err := w.other.agent.synced(ctx, w.repo.Head()); err != nil {
		return err
	}
	err = w.edit(func(gs *v1alpha1.GatewaySync) {
		gs.Spec.Bidirectional = &v1alpha1.BidirectionalSpec{Enabled: true, Provider: "none", Debounce: "1s"}
	})
	if err != nil {
		return err
	}

	w.say("Maria makes alarms orange on site-a, in a Designer, and saves.")
	alarmInGit := "shared/" + alarmFile
	base := w.repo.Head()
	hers := strings.Replace(w.repo.Content(base, alarmInGit), "#C62828", "#EF6C00", 1)
	if err := w.save(ctx, "plant-library", strings.TrimPrefix(alarm, "projects/plant-library/"), "style.json", hers); err != nil {
		return err
	}
	s, err := w.agent.await(ctx, "the change is pushed", func(s state) bool {
		return s.Proposal != nil && s.Proposal.State == string(v1alpha1.ProposalPushed)
	})
	if err != nil {
		return err
	}
	branch := s.Proposal.Branch
	w.show("branch " + branch + "\n" + w.repo.Git("log", "-1", "--format=%an: %s", branch) + "\n" +
		w.repo.Git("diff", "--name-status", base, branch))
	_, lines, _ := strings.Cut(w.repo.Git("diff", "--unified=0", base, branch, "--", alarmInGit), "@@\n")
	w.show(lines)
	if err := errors.Join(
		w.check(w.repo.Git("rev-parse", branch+"^") == base, "the agent pushed one commit above %.7s, which the gateway runs", base),
		w.check(w.repo.Content(branch, alarmInGit) == hers, "it has the bytes that Maria saved, in the folder where git has the file"),
	); err != nil {
		return err
	}

	w.say("On a forge such as GitHub, GitLab or Gitea, the agent now opens a pull request, and a colleague reviews and merges it.")
	w.say("This demo has only a git server, so it merges the branch itself.")
	scans := w.scans()
	merge := w.repo.Merge("Merge branch "+branch, branch)
	if s, err = w.agent.await(ctx, "site-a adopts the merge", func(s state) bool {
		return s.Phase == "Synced" && s.Commit == merge && s.Proposal != nil && s.Proposal.State == string(v1alpha1.ProposalMerged)
	}); err != nil {
		return err
	}
	w.show("site-a: " + strings.Join(s.Plan, "\n"))
	files := s.Report.Files
	if err := errors.Join(
		w.check(files.Added+files.Modified+files.Deleted == 0, "site-a stands at %.7s, and no file of it was written", merge),
		w.check(w.scans() == scans+1, "its gateway was asked for one scan: the files do not show that the gateway itself wrote them"),
	); err != nil {
		return err
	}
	if s, err = w.other.agent.synced(ctx, merge); err != nil {
		return err
	}
	w.show("site-b: " + strings.Join(s.Plan, "\n"))
	deleted := func(state) bool { return w.repo.Git("for-each-ref", "refs/heads/"+branch) == "" }
	if _, err := w.agent.await(ctx, "the branch is deleted", deleted); err != nil {
		return err
	}
	return errors.Join(
		w.check(w.other.hasLoaded(alarm, "style.json", hers), "site-b took the change like any commit, and its gateway has loaded it"),
		w.check(deleted(state{}), "the agent of site-a deleted the branch"),
		w.check(w.gateway.Canaries.Check() == nil && w.other.gateway.Canaries.Check() == nil, "the gateways' own files were never touched"),
		w.check(len(w.gateway.Requests.Violations())+len(w.other.gateway.Requests.Violations()) == 0, "every request to the gateways was one that Ignition documents"),
	)
}
