// Command kind is the kind CLI at the version in go.mod. `kind image` prints the default node image of that version. It
// is a module of its own, so that the project does not depend on kind.
package main

import (
	"fmt"
	"os"

	"sigs.k8s.io/kind/cmd/kind/app"
	"sigs.k8s.io/kind/pkg/apis/config/defaults"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "image" {
		fmt.Println(defaults.Image)
		return
	}
	app.Main()
}
