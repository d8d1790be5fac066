// Types that the scripts of several pages share; read by the type checker only, never part of a page.

/** A value of an attribute: false, null and undefined leave it out, a function listens to the event. */
type AttributeValue = string | number | boolean | null | undefined | ((event: any) => unknown);
type Attributes = Record<string, AttributeValue>;
type Child = Node | string | null | undefined;
