package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"sigs.k8s.io/yaml"
)

// cliArchive is an archive with the command line.
type cliArchive struct{ platform, file, sum string }

// downloads is where the archives of a release can be fetched from.
const downloads = "https://github.com/stoker-io/stoker/releases/download/v"

// makeArchives writes an archive of the command line for each platform. For Linux and macOS, it also writes one of the agent, for gateways
// without Kubernetes.
func (r *release) makeArchives(ctx context.Context) error {
	manual, err := r.manual(ctx)
	if err != nil {
		return err
	}
	for _, platform := range r.all {
		system, arch, _ := strings.Cut(platform, "/")
		for _, p := range programsOn(platform) {
			if p != cliProgram && p != agentProgram {
				continue
			}
			content, err := os.ReadFile(r.binary(platform, p))
			if err != nil {
				return err
			}
			entries := append([]entry{{executable(platform, p), content, 0o755}}, r.texts...)
			name := p.binary
			if p == cliProgram {
				entries = append(entries, manual...)
			} else {
				name = "stoker-agent"
			}
			file := fmt.Sprintf("%s_%s_%s_%s.tar.gz", name, r.version, system, arch)
			if system == "windows" {
				file = strings.TrimSuffix(file, ".tar.gz") + ".zip"
			}
			if err := writeArchive(r.path(file), entries, r.created); err != nil {
				return err
			}
			if p == cliProgram {
				sum, err := sumOf(r.path(file))
				if err != nil {
					return err
				}
				r.archives = append(r.archives, cliArchive{platform, file, sum})
			}
		}
	}
	return nil
}

// manual returns the manual pages and the completions of the command line, which writes them itself.
func (r *release) manual(ctx context.Context) ([]entry, error) {
	stoker := r.binary(runtime.GOOS+"/"+runtime.GOARCH, cliProgram)
	dir, err := os.MkdirTemp(r.bin, "man-")
	if err != nil {
		return nil, err
	}
	epoch := fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.created.Unix())
	command := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, stoker, args...)
		cmd.Env, cmd.Stderr = append(os.Environ(), epoch, "TZ=UTC"), r.stderr
		return cmd.Output()
	}
	if _, err := command("man", dir); err != nil {
		return nil, fmt.Errorf("stoker man: %w", err)
	}
	entries, err := readTree(dir, "man/man1/", nil)
	if err != nil {
		return nil, err
	}
	for shell, name := range map[string]string{"bash": "stoker", "zsh": "_stoker", "fish": "stoker.fish", "powershell": "stoker.ps1"} {
		script, err := command("completion", shell)
		if err != nil {
			return nil, fmt.Errorf("stoker completion %s: %w", shell, err)
		}
		entries = append(entries, entry{"completions/" + shell + "/" + name, script, 0o644})
	}
	return entries, nil
}

// describeArchives writes the manifest of the kubectl plugin for krew, and the formula for Homebrew.
func (r *release) describeArchives() error {
	var platforms []any
	for _, a := range r.archives {
		system, arch, _ := strings.Cut(a.platform, "/")
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": system, "arch": arch}},
			"uri":      downloads + r.version + "/" + a.file, "sha256": a.sum, "bin": executable(a.platform, cliProgram),
			"files": []map[string]string{{"from": executable(a.platform, cliProgram), "to": "."}, {"from": "LICENSE", "to": "."}, {"from": "THIRD_PARTY.txt", "to": "."}},
		})
	}
	manifest, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": map[string]string{"name": "stoker"},
		"spec": map[string]any{
			"version": "v" + r.version, "homepage": labels["org.opencontainers.image.source"],
			"shortDescription": "Keep Ignition gateways at a commit of git",
			"description":      "Requests refs for Ignition gateways, waits until they run them, and shows the state of each gateway.",
			"platforms":        platforms,
		},
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.path("krew.yaml"), manifest, 0o644); err != nil {
		return err
	}
	return os.WriteFile(r.path("stoker.rb"), []byte(r.formula()), 0o644)
}

// formula returns the formula for Homebrew (https://docs.brew.sh/Formula-Cookbook).
func (r *release) formula() string {
	var b strings.Builder
	fmt.Fprintf(&b, "class Stoker < Formula\n  desc \"Keep Ignition gateways at a commit of git\"\n  homepage %q\n  version %q\n  license \"Apache-2.0\"\n",
		labels["org.opencontainers.image.source"], r.version)
	for _, system := range []struct{ block, name string }{{"on_macos", "darwin"}, {"on_linux", "linux"}} {
		fmt.Fprintf(&b, "\n  %s do\n", system.block)
		for _, cpu := range []struct{ block, name string }{{"on_arm", "arm64"}, {"on_intel", "amd64"}} {
			for _, a := range r.archives {
				if a.platform == system.name+"/"+cpu.name {
					fmt.Fprintf(&b, "    %s do\n      url %q\n      sha256 %q\n    end\n", cpu.block, downloads+r.version+"/"+a.file, a.sum)
				}
			}
		}
		b.WriteString("  end\n")
	}
	b.WriteString(`
  def install
    bin.install "stoker"
    bin.install_symlink "stoker" => "kubectl-stoker"
    man1.install Dir["man/man1/*"]
    bash_completion.install "completions/bash/stoker"
    zsh_completion.install "completions/zsh/_stoker"
    fish_completion.install "completions/fish/stoker.fish"
  end

  test do
    assert_equal version.to_s, shell_output("#{bin}/stoker version").strip
  end
end
`)
	return b.String()
}
