// Package ui opens the page of the real command stoker ui in a real browser, against fleets on a real API server.
package ui

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"stoker.io/stoker/api/v1alpha1"
	"stoker.io/stoker/hooks/ui/uitest"
	"stoker.io/stoker/test/cluster/kubetest"
	"stoker.io/stoker/test/document"
	"stoker.io/stoker/test/program"
)

var update = flag.Bool("update", false, "write docs/images")

func TestMain(m *testing.M) { os.Exit(program.M{Tests: kubetest.M{M: m}}.Run()) }

// liveness is ten times what a loaded machine needs.
const liveness = time.Minute

// axe returns the source of axe-core, or "" if npm is not installed.
func axe(t *testing.T) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Log("npm is not installed: axe-core does not check the pages")
		return ""
	}
	const file = "node_modules/axe-core/axe.min.js"
	if _, err := os.Stat(file); err != nil {
		out, err := exec.CommandContext(t.Context(), npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(source)
}

// browser is a headless Chromium.
type browser struct {
	t   *testing.T
	ctx context.Context
	axe string

	mu    sync.Mutex
	wrong []string // errors of scripts, and violations of the Content-Security-Policy of a page
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	file, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: on Debian, apt-get install chromium")
	}
	alloc, cancel := chromedp.NewExecAllocator(t.Context(), chromedp.ExecPath(file), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-sync", true), chromedp.Flag("hide-scrollbars", true), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(liveness))
	t.Cleanup(cancel)
	ctx, end := chromedp.NewContext(alloc)
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // waits until the browser has ended, which writes to its folder until then
		end()
	})
	b := &browser{t: t, ctx: ctx, axe: axe(t)}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *log.EventEntryAdded:
			b.note(string(e.Entry.Level) + ": " + e.Entry.Text + " " + e.Entry.URL)
		case *runtime.EventExceptionThrown:
			b.note(e.ExceptionDetails.Error())
		case *runtime.EventConsoleAPICalled:
			b.note(string(e.Type))
		}
	})
	b.do(log.Enable(), runtime.Enable(), network.Enable())
	return b
}

func (b *browser) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, what)
}

// clean expects that no script failed and nothing violated the Content-Security-Policy since the last call.
func (b *browser) clean(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	assert.Empty(t, b.wrong)
	b.wrong = nil
}

func (b *browser) do(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, liveness)
	defer cancel()
	if b.ctx.Err() == nil && chromedp.FromContext(b.ctx).Target == nil { // the first run starts the browser, whose context must outlive the timeout
		require.NoError(b.t, chromedp.Run(b.ctx))
	}
	require.NoError(b.t, chromedp.Run(ctx, actions...))
}

// value evaluates an expression in the page.
func value[T any](b *browser, expression string) (v T) {
	b.t.Helper()
	b.do(chromedp.Evaluate(expression, &v, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return v
}

// until waits until an expression is true. While the browser opens another page, it has no value.
func (b *browser) until(t *testing.T, expression string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, liveness)
	defer cancel()
	for ok := false; !ok; time.Sleep(50 * time.Millisecond) {
		err := chromedp.Run(ctx, chromedp.Evaluate(expression, &ok))
		require.NoError(t, ctx.Err(), "%s: %v", expression, err)
	}
}

// look sets the size and the scheme, and opens an address.
func (b *browser) look(address string, width int64, scheme string) {
	b.t.Helper()
	b.do(emulation.SetDeviceMetricsOverride(width, 900, 1, false),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}),
		chromedp.Navigate(address), chromedp.WaitReady("main"))
}

// shot takes a picture of the page: of the given height, or if it is 0 of the whole page, at most 3,000 pixels high.
func (b *browser) shot(height int64) []byte {
	b.t.Helper()
	var raw []byte
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, _, _, _, _, size, err := page.GetLayoutMetrics().Do(ctx)
		if err != nil {
			return err
		}
		h := min(size.Height, 3000)
		if height > 0 {
			h = float64(height)
		}
		raw, err = page.CaptureScreenshot().WithCaptureBeyondViewport(true).WithClip(&page.Viewport{Width: size.Width, Height: h, Scale: 1}).Do(ctx)
		return err
	}))
	return raw
}

// accessible expects that axe-core finds nothing.
func (b *browser) accessible(t *testing.T) {
	t.Helper()
	if b.axe == "" {
		return
	}
	b.do(chromedp.Evaluate(b.axe+"; true", nil))
	found := value[string](b, `axe.run(document).then(r => r.violations.map(v => v.id + ": " + v.help + " " + v.nodes.slice(0, 3).map(n => n.target + " " + n.failureSummary).join(" | ")).join("\n"))`)
	assert.Empty(t, found)
}

// inspect opens a page in both schemes, narrow and wide, and expects that it fits, that axe-core finds nothing and that no script fails. It keeps
// the screenshots in the folder STOKER_TEST_SCREENSHOTS.
func (b *browser) inspect(t *testing.T, name, address string) {
	t.Helper()
	dir := os.Getenv("STOKER_TEST_SCREENSHOTS")
	for _, scheme := range []string{"light", "dark"} {
		t.Run(scheme, func(t *testing.T) {
			for _, width := range []int64{360, 1280} {
				t.Run(fmt.Sprint(width), func(t *testing.T) {
					b.look(address, width, scheme)
					assert.LessOrEqual(t, value[int64](b, "document.documentElement.scrollWidth"), width, "nothing may be wider than the screen")
					raw := b.shot(0)
					assert.Greater(t, shades(t, raw), 8, "the screenshot must not be blank")
					if dir != "" {
						require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%s-%d.png", name, scheme, width)), raw, 0o644))
					}
					b.accessible(t)
					if name == "problem" { // the browser reports 404
						b.mu.Lock()
						b.wrong = nil
						b.mu.Unlock()
					}
					b.clean(t)
				})
			}
		})
	}
}

// stoker starts stoker ui, and returns the address that it prints.
func stoker(t *testing.T, kubeconfig string, args ...string) string {
	t.Helper()
	p := program.Start(t, "stoker ui", exec.CommandContext(t.Context(), program.Build(t, "hooks"), append([]string{"ui", "--kubeconfig", kubeconfig}, args...)...))
	require.Eventually(t, func() bool { return strings.Contains(p.Log.String(), "?token=") }, liveness, 20*time.Millisecond)
	for line := range strings.Lines(p.Log.String()) {
		if strings.HasPrefix(line, "http://") {
			return strings.TrimSpace(line)
		}
	}
	require.Fail(t, "the command printed no address", p.Log.String())
	return ""
}

// Each command of the documents prints an address that opens a page.
func TestDocumentedCommands(t *testing.T) {
	s := uitest.New(t, kubetest.Control(t))
	s.Fleet("line", 1, 0)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	lines := document.Open(t)
	for _, name := range []string{"docs/how-to/ui.md", "docs/reference/cli.md"} {
		for c := range lines.Of(name) {
			t.Run(c.Text, func(t *testing.T) {
				args, ok := strings.CutPrefix(c.Text, "stoker ui")
				require.True(t, ok)
				address := stoker(t, s.Cluster.Kubeconfig(), append(strings.Fields(args), "--namespace", s.Namespace)...)
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
				require.NoError(t, err)
				res, err := client.Do(request)
				require.NoError(t, err)
				res.Body.Close()
				assert.Equal(t, http.StatusSeeOther, res.StatusCode)
			})
		}
	}
}

func TestPageInBrowser(t *testing.T) {
	b := newBrowser(t)
	cluster := kubetest.Control(t)
	s := uitest.NewIn(t, cluster, cluster.NamespaceNamed(t, "plant")) // the pictures show it
	three := s.Fleet("area", 3, 3)
	s.Fleet("filling", 50, 7)
	s.Fleet("site", 1000, 25)
	s.Fleet("packaging", 12, 0)
	s.Rollout("bottling", v1alpha1.RolloutWaiting)
	s.Rollout("brewing", v1alpha1.RolloutSoaking)
	s.Rollout("kegging", v1alpha1.RolloutAborted)
	s.Agent("area-3", "area-2")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := api.NewConfig()
	config.Clusters["north"] = &api.Cluster{Server: s.Agents.Config().Host}
	config.Contexts["north"] = &api.Context{Cluster: "north", Namespace: s.Namespace}
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	first := stoker(t, file, "--context", "north")
	base, _, _ := strings.Cut(first, "/?")
	b.look(first, 1280, "light")
	b.until(t, `document.querySelectorAll(".list tbody tr").length === 7`)
	assert.Equal(t, base+"/", value[string](b, "location.href"), "the token must be removed from the address")

	fleets := base + "/fleets/" + s.Namespace + "/"
	diff := value[string](b, `fetch("`+fleets+`area/gateway?name=area-3").then(r => r.text()).then(t => t.match(/href="([^"]*\/sync\?[^"]*)"/)[1].replaceAll("&amp;", "&"))`)
	pages := map[string]string{
		"fleets": base + "/", "3": fleets + "area", "50": fleets + "filling", "1000": fleets + "site", "gateway": fleets + "area/gateway?name=area-3",
		"waiting": fleets + "bottling", "soaking": fleets + "brewing", "aborted": fleets + "kegging", "page": fleets + "site?page=10",
		"away": fleets + "filling/gateway?name=filling-7", "sync": base + diff, "text": fleets + "area/text?name=area-3&path=code.py", "reason": base + "/reasons/GatewayForbidden", "problem": fleets + "unheard",
	}
	for name, address := range pages {
		t.Run(name, func(t *testing.T) {
			s.Confirm()
			b.inspect(t, name, address)
		})
	}

	t.Run("keyboard", func(t *testing.T) {
		b.look(pages["fleets"], 1280, "light")
		press := func(keys ...string) {
			for _, k := range keys {
				b.do(chromedp.KeyEvent(k))
			}
		}
		press(kb.Tab)
		assert.Equal(t, "Skip to the content", value[string](b, "document.activeElement.textContent"))
		assert.True(t, value[bool](b, "document.activeElement.getBoundingClientRect().left >= 0"), "the focused link must be visible")
		press(kb.Enter)
		b.until(t, `document.activeElement.id === "main"`)
		// sequence: each press moves the focus on
		for n := 0; value[string](b, "document.activeElement.textContent") != three.Name && n < 60; n++ {
			press(kb.Tab)
			assert.NotEqual(t, "none", value[string](b, `getComputedStyle(document.activeElement).outlineStyle`), "the focus must be visible")
		}
		press(kb.Enter)
		b.until(t, `location.pathname.endsWith("/area")`)
		b.clean(t)
	})

	t.Run("live", func(t *testing.T) {
		s.Confirm()
		b.look(fleets+"area", 1280, "light")
		b.until(t, `document.getElementById("link").textContent === "Live, read-only"`)
		b.do(chromedp.Focus("#q"), chromedp.SendKeys("#q", "area"))
		st := three.Status
		for i := range st.DiscoveredGateways {
			g := &st.DiscoveredGateways[i]
			g.SyncStatus, g.Reason, g.Message, g.SyncedCommit = "Synced", "Synced", "", uitest.Target
		}
		s.Write(three, st)
		b.until(t, `document.getElementById("headline").textContent === "All 3 gateways run main"`)
		assert.Equal(t, "area", value[string](b, `document.activeElement.value`), "the input of the user must stay")
		b.clean(t)
	})

	t.Run("without JavaScript", func(t *testing.T) {
		s.Confirm()
		b.do(emulation.SetScriptExecutionDisabled(true))
		b.look(fleets+"filling?state=Held&sort=name&dir=desc", 1280, "light")
		b.do(emulation.SetScriptExecutionDisabled(false))
		names := value[[]string](b, `[...document.querySelectorAll("#gateways ~ * tbody th, section[aria-labelledby=gateways] tbody th")].map(e => e.textContent)`)
		assert.NotEmpty(t, names)
		b.clean(t)
	})

	if *update {
		s.Confirm()
		small := func(name, address string, width, height int64) {
			b.look(address, width, "light")
			raw := b.shot(height)
			require.NoError(t, os.MkdirAll("../../docs/images", 0o755))
			require.NoError(t, os.WriteFile(filepath.Join("../../docs/images", name), compact(t, raw), 0o644))
		}
		small("ui-fleets.png", pages["fleets"], 1080, 640)
		small("ui-rollout.png", pages["waiting"], 1080, 800)
		small("ui-gateway.png", pages["away"], 1080, 640)
	}
	for _, f := range []string{"ui-fleets.png", "ui-rollout.png", "ui-gateway.png"} {
		t.Run(f, func(t *testing.T) {
			info, err := os.Stat(filepath.Join("../../docs/images", f))
			require.NoError(t, err, "run go test -run Page -update")
			assert.LessOrEqual(t, info.Size(), int64(100<<10))
		})
	}
}

// Three sites, of which one stops answering while the page is open.
func TestSeveralSitesInBrowser(t *testing.T) {
	b := newBrowser(t)
	cluster := kubetest.Control(t)
	config := api.NewConfig()
	scenes := map[string]*uitest.Scene{}
	for _, name := range []string{"north", "south", "east"} { // setup: a context for each, to an API server of its own
		s := uitest.New(t, cluster)
		scenes[name] = s
		config.Clusters[name] = &api.Cluster{Server: s.Agents.Config().Host}
		config.Contexts[name] = &api.Context{Cluster: name, Namespace: s.Namespace}
	}
	scenes["north"].Fleet("filling", 50, 7)
	scenes["north"].Fleet("packaging", 12, 0)
	scenes["north"].Config("plant", v1alpha1.ReasonSynced, "all 4 objects of 8a9ef4f are applied and healthy")
	scenes["south"].Rollout("bottling", v1alpha1.RolloutSoaking)
	scenes["south"].Config("plant", v1alpha1.ReasonApplyForbidden, `deployments.apps is forbidden: User "system:serviceaccount:plant:stoker-config" cannot patch resource "deployments"`)
	scenes["east"].Fleet("brewing", 30, 0)
	scenes["east"].Config("plant", v1alpha1.ReasonSynced, "all 4 objects of 8a9ef4f are applied and healthy")
	file := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	first := stoker(t, file, "--contexts", "all")
	base, _, _ := strings.Cut(first, "/?")
	b.look(first, 1280, "light")
	b.until(t, `document.querySelectorAll("section[aria-labelledby=sites] tbody tr").length === 3`)
	b.until(t, `document.getElementById("headline").textContent.includes("of 98 gateways are behind")`)
	b.until(t, `document.getElementById("link").textContent === "Live, read-only"`)
	b.inspect(t, "sites-all", base+"/")
	scenes["east"].Agents.Stop()
	b.until(t, `document.getElementById("headline").textContent === "What the gateways of east run is not known"`)
	b.until(t, `document.getElementById("link").textContent === "Not live: east does not answer"`)
	assert.Zero(t, value[int](b, `document.querySelectorAll("section[aria-labelledby=sites] tbody tr:first-child .chip.good").length`))
	for name, path := range map[string]string{"sites-lost": "/", "site-lost": "/?site=east", "site": "/?site=south", "fleet-lost": "/sites/east/fleets/" + scenes["east"].Namespace + "/brewing"} {
		t.Run(name, func(t *testing.T) {
			scenes["north"].Confirm()
			scenes["south"].Confirm()
			b.inspect(t, name, base+path)
		})
	}
}

// shades counts the colors of a picture, up to 64.
func shades(t *testing.T, raw []byte) int {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(raw))
	require.NoError(t, err)
	seen := map[color.Color]bool{}
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y && len(seen) < 64; y += 2 {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X && len(seen) < 64; x += 2 {
			seen[picture.At(x, y)] = true
		}
	}
	return len(seen)
}

// compact returns a picture with at most 256 colors.
func compact(t *testing.T, raw []byte) []byte {
	t.Helper()
	picture, err := png.Decode(bytes.NewReader(raw))
	require.NoError(t, err)
	count := map[color.Color]int{}
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y++ {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x++ {
			count[picture.At(x, y)]++
		}
	}
	var palette color.Palette
	for len(palette) < 256 && len(count) > 0 {
		var most color.Color
		for c, n := range count {
			if most == nil || n > count[most] {
				most = c
			}
		}
		palette = append(palette, most)
		delete(count, most)
	}
	small := image.NewPaletted(picture.Bounds(), palette)
	for y := picture.Bounds().Min.Y; y < picture.Bounds().Max.Y; y++ {
		for x := picture.Bounds().Min.X; x < picture.Bounds().Max.X; x++ {
			small.Set(x, y, picture.At(x, y))
		}
	}
	var b bytes.Buffer
	require.NoError(t, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&b, small))
	return b.Bytes()
}
