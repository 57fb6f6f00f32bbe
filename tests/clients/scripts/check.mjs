// The same as check.py, for Node.
export const { BASE_URL, MODEL } = process.env;
export const QUESTION = "Tell me the capital of France.";

export async function feature(name, tried) {
  const found = { feature: name, ok: true, note: "" };
  try {
    await tried();
  } catch (error) {
    console.error(error);
    found.ok = false;
    found.note = `${error.name}: ${error.message}`.slice(0, 400);
  }
  console.log(JSON.stringify(found));
}
