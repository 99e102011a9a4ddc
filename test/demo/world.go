package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/test/gateway/simulator"
	"stoker.io/stoker/test/gitserver"
)

// world holds everything that the story needs.
type world struct {
	*printer
	*site             // site-a, the gateway of most steps
	other       *site // site-b, which starts in the last step
	dir, binary string
	repo        *gitserver.Repo
	git         *gitserver.Server
	commits     map[string]string // by their names in the story
}

// site is a gateway with its agent.
type site struct {
	name, data string
	gateway    *simulator.Gateway
	agent      *agent
}

// Paths of the view that the story changes.
const (
	views    = "projects/site-a/com.inductiveautomation.perspective/views/"
	overview = views + "Overview"
	viewFile = overview + "/view.json"
	inGit    = "services/site-a/" + viewFile

	projectFile = "projects/site-a/project.json"
)

// Paths of the style that both gateways have.
const (
	alarm     = "projects/plant-library/com.inductiveautomation.perspective/style-classes/alarm"
	alarmFile = alarm + "/style.json"
)

// do plays a step. A failed git command is an error.
func (w *world) do(ctx context.Context, s step) error {
	var err error
	failure := gitserver.Try(func(gitserver.TB) { err = s.play(ctx, w) })
	return errors.Join(failure, err)
}

// newWorld creates the repository and starts the git server and the gateway.
func newWorld(example, dir, binary string, t *printer) (*world, error) {
	w := &world{printer: t, dir: dir, binary: binary, commits: map[string]string{}}
	for _, d := range []string{"git", "secrets/gateway-api"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	files, err := readTree(example)
	if err != nil {
		return nil, err
	}
	if err := gitserver.Try(func(t gitserver.TB) {
		w.repo = gitserver.NewRepo(t, filepath.Join(dir, "git", "plants.git"))
		w.commits["first"] = w.repo.Commit("the two plants", gitserver.Files(files))
	}); err != nil {
		return nil, err
	}
	if w.git, err = gitserver.Start(filepath.Join(dir, "git"), gitserver.Options{Pushes: true}); err != nil {
		return nil, err
	}
	if w.site, err = newSite(dir, "site-a", ""); err != nil {
		return nil, errors.Join(err, w.git.Close())
	}
	if err := os.WriteFile(filepath.Join(dir, "secrets", "gateway-api", "apiKey"), []byte(w.gateway.Token()), 0o600); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// newSite starts the gateway of a site. The gateway accepts the API token, or issues one if token is "".
func newSite(dir, name, token string) (*site, error) {
	data := filepath.Join(dir, name, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	gateway, err := simulator.Start(simulator.Options{Data: data, Name: name, Token: token, Strict: true})
	if err != nil {
		return nil, err
	}
	return &site{name: name, data: data, gateway: gateway}, nil
}

// readTree reads the files below a directory.
func readTree(dir string) (map[string]string, error) {
	files := map[string]string{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		files[path] = string(content)
		return err
	})
	return files, err
}

// file returns the path of the GatewaySync.
func (w *world) file() string { return filepath.Join(w.dir, "gatewaysync.yaml") }

// edit changes the GatewaySync as an editor does: it replaces the file.
func (w *world) edit(change func(*v1alpha1.GatewaySync)) error {
	content, err := os.ReadFile(w.file())
	if err != nil {
		return err
	}
	var gs v1alpha1.GatewaySync
	if err := yaml.UnmarshalStrict(content, &gs); err != nil {
		return err
	}
	change(&gs)
	if content, err = yaml.Marshal(&gs); err != nil {
		return err
	}
	temp := w.file() + ".new"
	if err := os.WriteFile(temp, content, 0o644); err != nil {
		return err
	}
	return os.Rename(temp, w.file())
}

// startAgent starts the agent of a site.
func (w *world) startAgent(s *site) (err error) {
	s.agent, err = startAgent(w.binary, "--file", w.file(), "--profile", s.name, "--gateway-name", s.name,
		"--data-dir", s.data, "--repo-dir", filepath.Join(w.dir, s.name, "cache"), "--gateway-url", s.gateway.URL())
	return err
}

// commit commits edits and names the commit.
func (w *world) commit(name, message string, edits ...gitserver.Edit) string {
	w.commits[name] = w.repo.Commit(message, edits...)
	return w.commits[name]
}

// view returns the content of the overview in a commit, with from replaced by to.
func (w *world) view(commit, from, to string) string {
	return strings.Replace(w.repo.Content(commit, inGit), from, to, 1)
}

// save saves a file of a resource, as Maria does in a Designer.
func (s *site) save(ctx context.Context, project, resource, file, content string) error {
	session, err := s.gateway.Designers.Open("maria", project)
	if err != nil {
		return err
	}
	if err := s.gateway.Designers.OpenResource(session, resource); err != nil {
		return err
	}
	if err := s.gateway.Designers.SaveResource(ctx, session, resource, map[string][]byte{file: []byte(content)}, false); err != nil {
		return err
	}
	return s.gateway.Designers.Close(session)
}

// isLive checks that the disk and the gateway have the overview of a commit.
func (w *world) isLive(commit string) error {
	want := w.repo.Content(commit, inGit)
	got, err := os.ReadFile(filepath.Join(w.data, filepath.FromSlash(viewFile)))
	if err != nil {
		return err
	}
	if err := w.check(string(got) == want, "the view on the disk is that of commit %.7s", commit); err != nil {
		return err
	}
	return w.check(w.hasLoaded(overview, "view.json", want), "the gateway has loaded exactly these bytes")
}

// hasLoaded reports whether the gateway runs a file of a resource with this content.
func (s *site) hasLoaded(resource, file, content string) bool {
	sum := sha256.Sum256([]byte(content))
	return s.gateway.Data.Loaded(resource)[file] == hex.EncodeToString(sum[:])
}

// differing returns the files of site-a in a commit that differ on the disk.
func (w *world) differing(commit string) ([]string, error) {
	var differ []string
	for _, m := range []string{"shared/", "services/site-a/"} {
		for _, path := range strings.Split(w.repo.Git("ls-tree", "-r", "--name-only", commit, m), "\n") {
			got, err := os.ReadFile(filepath.Join(w.data, filepath.FromSlash(strings.TrimPrefix(path, m))))
			if err != nil {
				return nil, err
			}
			if string(got) != w.repo.Content(commit, path) {
				differ = append(differ, path)
			}
		}
	}
	return differ, nil
}

// scans returns the number of scan requests to the gateway.
func (s *site) scans() int {
	return s.gateway.Requests.Count("POST /data/api/v1/scan/projects") + s.gateway.Requests.Count("POST /data/api/v1/scan/config")
}

// sumUp prints the totals of the story.
func (w *world) sumUp(took time.Duration) {
	stats := w.git.Stats()
	w.line("\nDone in %s: %d steps, %d facts checked.", took.Round(time.Second), len(steps), w.checks)
	w.line("The agents asked git for refs %d times and fetched %d packs, %d bytes in all. The gateways were asked to scan %d times.",
		stats.Advertisements, stats.UploadPacks, stats.PackBytes, w.scans()+w.other.scans())
}

// explain prints where everything is, for a user who wants to look around.
func (w *world) explain() {
	w.line("\nStill running (KEEP is set); Ctrl-C ends it and removes everything.")
	w.line("  GatewaySync  %s   (edit it: it is watched)", w.file())
	for _, s := range []*site{w.site, w.other} {
		w.line("  %s", s.name)
		w.line("    agent      %s/state", s.agent.url())
		w.line("    gateway    %s   simulator's own: %s", s.gateway.URL(), s.gateway.AdminURL())
		w.line("    its files  %s", s.data)
	}
	w.line("  repository   %s", w.git.URL("plants.git"))
	w.line("  to commit    git clone %s, then commit and push", w.repo.Dir)
}

// close stops everything, the agents first.
func (w *world) close() error {
	var errs []error
	for _, s := range []*site{w.site, w.other} {
		if s == nil {
			continue
		}
		if s.agent != nil {
			errs = append(errs, s.agent.stop())
		}
		errs = append(errs, s.gateway.Close())
	}
	return errors.Join(append(errs, w.git.Close())...)
}

// printer prints the story, and counts the checked facts.
type printer struct {
	out    io.Writer
	checks int
}

func (t *printer) line(format string, args ...any) {
	fmt.Fprintf(t.out, format+"\n", args...)
}

func (t *printer) step(n int, title string) { t.line("\n%d. %s", n, title) }

// say prints what happens.
func (t *printer) say(text string) { t.line("   %s", text) }

// show prints evidence, at most eight lines.
func (t *printer) show(text string) {
	const maxLines = 8
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		if i == maxLines {
			t.line("     | … and %d more lines", len(lines)-maxLines)
			return
		}
		t.line("     | %s", line)
	}
}

// check prints a fact that is true. Otherwise it returns the error that ends the demo.
func (t *printer) check(ok bool, format string, args ...any) error {
	fact := fmt.Sprintf(format, args...)
	if !ok {
		return fmt.Errorf("this should be true and is not: %s", fact)
	}
	t.checks++
	t.line("   ✓ %s", fact)
	return nil
}
