package main

import (
	"fmt"
	"time"

	"stoker.io/stoker/test/bench/repository"
)

// goal is a line of the report's last table.
type goal struct {
	what, measured string
	verdict        string // met, missed
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

// goals compares the figures with the project's goals. It omits what was not measured.
func (r results) goals(s settings) []goal {
	var all []goal
	for _, size := range s.sizes {
		g := judge{r, size, nil}
		switch size.Name {
		case "M":
			g.closeToGit(0, 12)
			g.firstSync(0.75)
		case "L":
			g.closeToGit(1.25, 25)
			g.firstSync(0.6)
			g.memory("one", once, 28)
			g.memory("first", once, 52)
			g.idle()
		case "H":
			g.container()
		}
		g.atMost(1.2, "one", resident, unchecked)
		g.small("one")
		g.small("merge")
		g.lostStore()
		g.disk()
		g.drift()
		all = append(all, g.found...)
	}
	return all
}

type judge struct {
	r     results
	size  size
	found []goal
}

func (g *judge) key(c, who string) key { return key{g.size.Name, c, who} }

func (g *judge) add(met bool, what, measured string) {
	g.found = append(g.found, goal{g.size.Name + ": " + what, measured, verdict(met)})
}

func title(name string) string {
	for _, c := range cases {
		if c.name == name {
			return c.title
		}
	}
	return name
}

func (g *judge) walls(c, who, peer string) (mine, theirs time.Duration, ok bool) {
	mine, found := median(g.r, g.key(c, who), wall)
	theirs, foundToo := median(g.r, g.key(c, peer), wall)
	return mine, theirs, found && foundToo && theirs > 0
}

// atMost requires a wall time of at most factor times that of a peer.
func (g *judge) atMost(factor float64, c, who, peer string) {
	if mine, theirs, ok := g.walls(c, who, peer); ok {
		ratio := float64(mine) / float64(theirs)
		g.add(ratio <= factor, fmt.Sprintf("%s, %s: at most %.2f × %s", title(c), who, factor, peer), fmt.Sprintf("%.2f ×", ratio))
	}
}

// faster requires a wall time factor times shorter than that of a peer.
func (g *judge) faster(factor float64, c, who, peer string) {
	if mine, theirs, ok := g.walls(c, who, peer); ok {
		ratio := float64(theirs) / float64(mine)
		g.add(ratio >= factor, fmt.Sprintf("%s, %s: at least %.0f times faster than %s", title(c), who, factor, peer), fmt.Sprintf("%.1f times", ratio))
	}
}

// closeToGit requires a one-file commit to take at most maxRatio times as long as git alone (0 for no such goal), and to be
// factor times faster than git with a work tree and rsync.
func (g *judge) closeToGit(maxRatio, factor float64) {
	for _, c := range []string{"one", "merge"} {
		for _, agent := range []string{once, resident} {
			if maxRatio > 0 {
				g.atMost(maxRatio, c, agent, fetch)
			}
			g.faster(factor, c, agent, rsync)
		}
	}
}

// firstSync compares a first sync, with its fsyncs, with rsync and with a run without fsyncs. It also compares the sync in a Guaranteed pod with
// the one without a limit on CPU.
func (g *judge) firstSync(ratio float64) {
	g.atMost(ratio, "first", once, rsync)
	g.atMost(1.25, "first", once, unsynced)
	g.atMost(1.25, "first", guaranteed, once)
}

func (g *judge) memory(c, who string, limit int64) {
	if n, ok := median(g.r, g.key(c, who), anon); ok && n > 0 {
		g.add(n <= limit<<20, fmt.Sprintf("%s, %s: at most %d MiB of anonymous memory", title(c), who, limit), mebibytes(n)+" MiB")
	}
}

// container requires that a first sync with large binaries is not killed in a container with little memory, and needs less memory than the
// largest file has.
func (g *judge) container() {
	k := g.key("first", once)
	n, ok := median(g.r, k, anon)
	if !ok {
		return
	}
	killed := g.r.killed(k)
	g.add(killed == 0, fmt.Sprintf("%s in a container of %d MiB", title("first"), g.size.memory>>20), fmt.Sprintf("killed in %d of %d rounds", killed, len(g.r[k])))
	g.add(killed == 0 && n < repository.BinaryBytes, "memory is independent of the largest file: less than its size", fmt.Sprintf("%s MiB; the file has %d", mebibytes(n), repository.BinaryBytes>>20))
}

// drift requires a comparison of all files to take at most 15 µs a file.
func (g *judge) drift() {
	w, ok := median(g.r, g.key("drift", once), wall)
	if !ok {
		return
	}
	each := float64(w.Microseconds()) / float64(g.size.Files)
	g.add(each <= 15, title("drift")+": at most 15 µs a file", fmt.Sprintf("%.1f µs", each))
}

// idle requires that a sync without changes costs the resident agent almost nothing.
func (g *judge) idle() {
	k := g.key("nothing", resident)
	used, ok := median(g.r, k, cpu)
	if !ok || used == 0 { // the system does not report it
		return
	}
	asked, _ := median(g.r, k, fetches)
	g.add(used <= 10*time.Millisecond && asked == 0, "nothing to do: no git object, at most 10 ms of CPU in the resident agent (reading its file and asking git are in the figure)",
		fmt.Sprintf("%d fetches, %.1f ms", asked, float64(used)/float64(time.Millisecond)))
}

// small requires a one-file commit to download little more than that file.
func (g *judge) small(c string) {
	k := g.key(c, once)
	bytes, ok := median(g.r, k, pack)
	if !ok {
		return
	}
	met := true
	for _, s := range g.r[k] {
		met = met && s.pack <= 1000+s.changed
	}
	file, _ := median(g.r, k, changed)
	g.add(met, title(c)+": at most 1 kB of pack besides the file", fmt.Sprintf("%d bytes for a file of %d", bytes, file))
}

func (g *judge) lostStore() {
	if asked, ok := median(g.r, g.key("lost", once), fetches); ok {
		g.add(asked == 0, title("lost")+": the ref advertisement only", fmt.Sprintf("%d fetches", asked))
	}
	k := g.key("late", once)
	if bytes, ok := median(g.r, k, pack); ok {
		file, _ := median(g.r, k, changed)
		limit := int64(80*g.size.Files) + file
		g.add(bytes <= limit, title("late")+": at most 80 bytes a file and the changed file", fmt.Sprintf("%d bytes; %d allowed", bytes, limit))
	}
}

// disk compares what the agent keeps beside the live data with the pack of a shallow fetch, which is the packed tip.
func (g *judge) disk() {
	mine, ok := median(g.r, g.key("first", once), kept)
	tip, okToo := median(g.r, g.key("first", fetch), pack)
	if ok && okToo && tip > 0 {
		ratio := float64(mine) / float64(tip)
		g.add(ratio <= 1.2, "disk beside the live data: at most 1.2 × the packed tip", fmt.Sprintf("%.2f ×", ratio))
	}
}
