/* Search in pages that are opened from a folder. Browsers start no worker from file://, so the search's script runs in a
   hidden frame of the page instead. This has only what the site's search needs of a worker: messages both ways, and an
   end. A page that comes from a server uses the browser's own workers. */
if (location.protocol === "file:") {
  window.Worker = class {
    onmessage = null
    onerror = null

    constructor(address) {
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => queueMicrotask(() => this.onmessage?.({ data }))
      this.loaded = new Promise(resolve => {
        const script = inside.document.createElement("script")
        script.src = new URL(address, location)
        script.onload = () => resolve(inside)
        script.onerror = event => this.onerror?.(event)
        inside.document.body.append(script)
      })
    }

    postMessage(data) {
      const copy = structuredClone(data)
      this.loaded.then(inside => inside.onmessage({ data: copy }))
    }

    terminate() {
      this.onmessage = null
      this.frame.remove()
    }
  }
}
